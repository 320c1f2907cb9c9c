"""A worker process: a server whose sockets, settings and commands come from its supervisor.

It drains and ends on the supervisor's command, or when the control channel closes because the supervisor has died.
"""

import asyncio
import logging
import socket
from collections.abc import Callable

import msgspec

from duetime.http.balance import ConnectionBalance
from duetime.model.errors import InvalidSettings
from duetime.model.masking import mask
from duetime.model.settings import Settings
from duetime.server.apps import Runtime
from duetime.server.process import serve
from duetime.server.supervision.control_channel import Channel
from duetime.server.supervision.program import Orders, Start, obey_as_worker
from duetime.server.supervision.siblings import SiblingWorker

log = logging.getLogger("duetime.supervision")


async def work(control: int, set_up_logging: Callable[[Settings], None], reopen_logs: Callable[[], None]) -> None:
    """Serves until it is stopped. `control` is the file number of this process's end of the control channel."""
    orders = Orders()
    obey_as_worker(orders, reopen_logs)
    channel = Channel(socket.socket(fileno=control))
    await channel.open()
    _handle_commands(channel, orders, reopen_logs)
    start = msgspec.msgpack.decode(await channel.ask("start"), type=Start)
    set_up_logging(start.settings)
    sockets = {name: socket.socket(fileno=number) for name, number in start.sockets.items()}
    watch = asyncio.create_task(_watch(channel, orders))
    balance = ConnectionBalance(start.balance, start.slot) if start.balance else None
    siblings = SiblingWorker(start.name, channel, balance=balance)

    def ready(runtime: Runtime) -> None:
        problems = {name: mask(error.message) for name, error in runtime.pools.errors().items()}
        channel.send("ready", msgspec.msgpack.encode(problems))

    try:
        await serve(start.settings, sockets, orders, siblings=siblings, ready=ready)
        await siblings.send_final_report()
    except InvalidSettings as error:
        await channel.ask("refused", error.message.encode())
    finally:
        watch.cancel()
        await channel.close()


def _handle_commands(channel: Channel, orders: Orders, reopen_logs: Callable[[], None]) -> None:
    def handle_command(name: str, act: Callable[[], None]) -> None:
        async def handle(body: bytes) -> bytes:
            act()
            return b""

        channel.handle(name, handle)

    handle_command("drain", orders.stop.set)
    handle_command("abort", orders.abort.set)
    handle_command("reopen_logs", reopen_logs)
    handle_command("ping", lambda: None)


async def _watch(channel: Channel, orders: Orders) -> None:
    await channel.gone.wait()
    if not orders.stop.is_set():
        log.error("supervisor_gone")
    orders.stop.set()
