"""A worker process: the sockets, the settings and the orders come from its supervisor, the rest is one server.

It ends when it is told to, and also when its supervisor is gone, as the end of the control channel tells: then too it
drains first.
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
from duetime.server.supervision.program import Start
from duetime.server.supervision.siblings import SiblingWorker
from duetime.server.supervision.signals import Orders, obey_as_worker

log = logging.getLogger("duetime.supervision")


async def work(control: int, set_up_logging: Callable[[Settings], None], reopen_logs: Callable[[], None]) -> None:
    """Serve until the end. `control` is the number of this process's end of the control channel."""
    orders = Orders()
    obey_as_worker(orders, reopen_logs)
    channel = Channel(socket.socket(fileno=control))
    await channel.open()
    _take_orders(channel, orders, reopen_logs)
    start = msgspec.msgpack.decode(await channel.ask("start"), type=Start)
    set_up_logging(start.settings)
    sockets = {name: socket.socket(fileno=number) for name, number in start.sockets.items()}
    watch = asyncio.create_task(_watch(channel, orders))
    balance = ConnectionBalance(start.balance, start.slot) if start.balance else None
    siblings = SiblingWorker(start.name, channel, balance=balance)
    try:
        await serve(start.settings, sockets, orders, siblings=siblings, ready=_tell_ready(channel))
        await siblings.farewell()
    except InvalidSettings as error:
        await channel.ask("refused", error.message.encode())
    finally:
        watch.cancel()
        await channel.close()


def _take_orders(channel: Channel, orders: Orders, reopen_logs: Callable[[], None]) -> None:
    def obey(name: str, act: Callable[[], None]) -> None:
        async def handle(body: bytes) -> bytes:
            act()
            return b""

        channel.handle(name, handle)

    obey("drain", orders.stop.set)
    obey("cut", orders.hurry.set)
    obey("reopen_logs", reopen_logs)
    obey("ping", lambda: None)


def _tell_ready(channel: Channel) -> Callable[[Runtime], None]:
    def tell(runtime: Runtime) -> None:
        problems = {name: mask(error.message) for name, error in runtime.pools.errors().items()}
        channel.tell("ready", msgspec.msgpack.encode(problems))

    return tell


async def _watch(channel: Channel, orders: Orders) -> None:
    await channel.gone.wait()
    if not orders.stop.is_set():
        log.error("supervisor_gone")
    orders.stop.set()
