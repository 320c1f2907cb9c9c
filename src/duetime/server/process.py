"""One process that serves: stores, engines and listeners, in one event loop.

`serve` returns when it was stopped and everything is closed. A stop accepts no new connections, ends waiting polls and
finishes requests in progress, for at most `drain_timeout`. Then, or after a second signal, it aborts the rest.
"""

import asyncio
import gc
import resource
import socket
import ssl
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp

from duetime.engine.pools import Pools
from duetime.engine.recorder import Recorded, Recorder
from duetime.engine.registry_copy import RegistryCopy
from duetime.http.listener import Listener
from duetime.http.proxies import read_proxies
from duetime.http.service import limits_of
from duetime.journal.journal import Journal
from duetime.journal.options import options_of
from duetime.journal.recorder import NodeWithoutJournal, open_journal_recorder
from duetime.journal.registration import find_journaling
from duetime.metrics.meters import Meters
from duetime.metrics.process_meters import watch_budget, watch_journal, watch_listener
from duetime.metrics.recorder import MetricsRecorder, PoolMeters, TimedStore
from duetime.metrics.siblings import Siblings
from duetime.model.errors import InvalidSettings
from duetime.model.priority_shares import read_shares
from duetime.model.settings import Settings
from duetime.protocols.asgi import refusal_body
from duetime.protocols.local_guard import local_only
from duetime.server.apps import Runtime, admin_app, api_app, companions
from duetime.server.listeners import ListenerSpec, Listening, Make, Sockets, close_all
from duetime.server.supervision.program import Orders
from duetime.stores.base import Store
from duetime.stores.open import open_store

if TYPE_CHECKING:
    from duetime.tracing.server import ServerTracing

try:
    import uvloop
except ImportError:  # not on every platform
    uvloop = None

LAST_GRACE_S = 1.0
"""Time for the last requests of the admin listener, which serves until the others are drained."""


class PoolRecorders:
    """The recorders of all pools of a process: its metrics, and its journal if it keeps one. The journal must live
    longer than the pools. With `joins`, only pools that journal already are recorded in it.
    """

    def __init__(self, meters: Meters, journal: Journal | None = None, *, joins: bool = False) -> None:
        self._meters = meters
        self._journal = journal
        self._joins = joins
        self._pools: dict[str, PoolMeters] = {}
        if journal:
            watch_journal(meters, journal)

    async def watch(self, pool: str, store: Store) -> Recorded:
        meters = self._pool(pool)
        timed = TimedStore(store, meters)
        return Recorded(timed, [MetricsRecorder(meters), *await self._journal_recorders(timed, pool)])

    async def _journal_recorders(self, store: Store, pool: str) -> Sequence[Recorder]:
        if self._journal and not (self._joins and await find_journaling(store) is None):
            return await open_journal_recorder(store, self._journal, pool)
        if (await store.ping()).kind == "memory":  # no other process can make it a pool that journals
            return ()
        return [NodeWithoutJournal(store)]

    def count_parked(self, pools: Pools) -> None:
        """Read before each snapshot how many consumers wait; pools that are not open yet are shown by that, too."""

        def count() -> None:
            for pool, parked in pools.parked().items():
                self._pool(pool).parked.value = parked

        self._meters.before_snapshot(count)

    def _pool(self, name: str) -> PoolMeters:
        """Survives the pool's engines: a pool that was opened again counts on."""
        if name not in self._pools:
            self._pools[name] = PoolMeters(self._meters, name)
        return self._pools[name]


def http(
    name: str,
    make_app: Callable[[Runtime], ASGIApp],
    *,
    is_api: bool = False,
    is_balanced: bool = False,
) -> Make:
    """An HTTP listener for an application; `name` is its label in metrics. The API has a fast path. If a listener is
    balanced, the processes of a server share its clients evenly.
    """

    def make(runtime: Runtime, sockets: Sequence[socket.socket]) -> Listening:
        balance = runtime.siblings.balance if is_balanced else None
        limits = limits_of(runtime.settings)
        proxies = read_proxies(runtime.settings.trusted_proxies)
        listener = Listener(make_app(runtime), sockets, limits=limits, budget=runtime.budget, balance=balance)
        listener.service.proxies, listener.service.refusal_body = proxies, refusal_body
        if is_api:
            listener.service.fast_path = runtime.fast_path
        watch_listener(runtime.meters, name, listener.service)
        return listener

    return make


def tcp_listener(runtime: Runtime, sockets: Sequence[socket.socket]) -> Listening:
    from duetime.protocols.tcp import CommandRules, Commands, TcpOptions, TcpServer  # noqa: PLC0415 - few have it on

    settings = runtime.settings
    rules = CommandRules(settings.tcp_pool, settings.tcp_namespace, settings.tcp_token, settings.tcp_update_fails)
    options = TcpOptions(tls=read_certificate(settings.tcp_certificate), access_log=runtime.lmstfy.access_log)
    return TcpServer(Commands(runtime.callbacks.service.jobs, rules), sockets, options)


def ouqiang_app(runtime: Runtime) -> ASGIApp:
    from duetime.protocols.ouqiang import OuqiangApp  # noqa: PLC0415 - few servers have it on

    settings = runtime.settings
    app = OuqiangApp(
        lambda: runtime.pools.engine(settings.ouqiang_pool),
        settings.ouqiang_namespace,
        token=settings.ouqiang_token,
        tries=settings.ouqiang_tries,
        max_body=settings.max_body,
    )
    return runtime.lmstfy.access_log.around(app if settings.ouqiang_token else local_only(app))


def read_certificate(certificate: str) -> ssl.SSLContext | None:
    """Raises InvalidSettings if the file is not a certificate with its key."""
    if not certificate:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate)
    except OSError as error:
        raise InvalidSettings(f"tcp_certificate {certificate} cannot be read: {error}") from None
    return context


LISTENERS: Sequence[ListenerSpec] = (
    ListenerSpec("API", "host", "port", http("api", api_app, is_api=True, is_balanced=True)),
    ListenerSpec("socket", "unix_socket", "", http("api_socket", api_app, is_api=True), "unix_socket"),
    ListenerSpec("TCP", "tcp_host", "tcp_port", tcp_listener, "tcp_enabled", scheme="tcp"),
    ListenerSpec("ouqiang", "ouqiang_host", "ouqiang_port", http("ouqiang", ouqiang_app), "ouqiang_enabled"),
    ListenerSpec("admin", "admin_host", "admin_port", http("admin", admin_app), last=True, has_console=True),
    ListenerSpec(
        "admin-socket", "admin_unix_socket", "", http("admin_socket", admin_app), "admin_unix_socket", last=True
    ),
)
"""Everything that a server can listen on."""


def run(work: Coroutine[Any, Any, None]) -> None:
    """Runs on uvloop if it is installed, with the highest allowed number of open files."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    factory = None if uvloop is None else uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(work)


async def serve(
    settings: Settings, sockets: Sockets, orders: Orders, *, siblings: Siblings, ready: Callable[[Runtime], None]
) -> None:
    """Serves on these sockets until `orders.stop`, then closes them. Calls `ready` when everything is up.

    Raises InvalidSettings if a store can never be opened. A store that is down is opened when it comes back.
    """
    async with AsyncExitStack() as stack:
        stack.callback(close_all, sockets)
        options = options_of(settings)
        tracing = await stack.enter_async_context(_trace(settings)) if settings.otel_endpoint else None
        meters = Meters(settings.metrics_queues)
        joins = settings.console_only
        journal = await stack.enter_async_context(Journal(options, lazy=joins)) if options else None
        recorders = PoolRecorders(meters, journal, joins=joins)
        pools = Pools(
            settings.pools,
            open_store=open_store,
            registry_url=settings.registry_store,
            max_body=settings.max_body,
            shares=read_shares(settings.priority_shares),
            watch=recorders.watch,
        )
        recorders.count_parked(pools)
        if tracing is not None:
            pools.make_engine = tracing.engine
        await stack.enter_async_context(pools)
        registry_copy = await stack.enter_async_context(RegistryCopy(lambda: pools.registry))
        runtime = Runtime(settings, pools, registry_copy, siblings=siblings, tracing=tracing, meters=meters)
        watch_budget(meters, runtime.budget)
        for companion in companions(runtime):
            runtime.running.append(await stack.enter_async_context(companion))
        listeners = [(one.make(runtime, [sockets[one.name]]), one.last) for one in LISTENERS if one.name in sockets]
        for listener, _ in listeners:
            await listener.start()
        # The objects of the start live until the end: exclude them from garbage collection.
        gc.collect()
        gc.freeze()
        ready(runtime)
        await orders.stop.wait()
        runtime.draining.set()
        await _drain(listeners, orders, settings.drain_timeout.total_seconds())


def _trace(settings: Settings) -> AbstractAsyncContextManager["ServerTracing"]:
    try:
        from duetime.tracing.server import export_traces  # noqa: PLC0415 - the extra [otel] is optional
    except ModuleNotFoundError as missing:
        raise InvalidSettings.lacks("otel_endpoint", "otel", missing) from None
    return export_traces(settings.otel_endpoint)


async def _drain(listeners: Sequence[tuple[Listening, bool]], orders: Orders, grace_s: float) -> None:
    async def gently() -> None:
        await asyncio.gather(*(listener.stop(grace_s) for listener, last in listeners if not last))
        await asyncio.gather(*(listener.stop(min(grace_s, LAST_GRACE_S)) for listener, last in listeners if last))

    drain = asyncio.create_task(gently())
    abort = asyncio.create_task(orders.abort.wait())
    await asyncio.wait({drain, abort}, return_when=asyncio.FIRST_COMPLETED)
    abort.cancel()
    if not drain.done():
        drain.cancel()
        await asyncio.gather(drain, *(listener.stop(0) for listener, _ in listeners), return_exceptions=True)
    else:
        drain.result()
