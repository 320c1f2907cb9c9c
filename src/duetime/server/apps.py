"""The applications of the two listeners, and the protocols that each of them serves.

A request goes to the first application whose prefix its path has, through nothing but a comparison: push, reserve and
ack pass here. Everything else is ordinary Starlette.
"""

import asyncio
import importlib
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import tzinfo
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from duetime.alerts.problems import Alerts
from duetime.alerts.watchdog import Watchdog, WatchTargets
from duetime.callbacks.courier import Courier, CourierOptions
from duetime.callbacks.daily_logs import DailyLogs
from duetime.callbacks.failing_topics import FailingCallbacks
from duetime.callbacks.targets import AllowedTargets, read_networks
from duetime.callbacks.topic_registry import TopicRegistry
from duetime.callbacks.topic_service import TopicService
from duetime.console.live import LiveFigures
from duetime.console.parts import ConsoleParts
from duetime.console.rate_history import RateHistory
from duetime.engine.pools import Pools, RegisteredPools
from duetime.engine.registry_copy import RegistryCopy
from duetime.engine.schedules import ScheduleRunners
from duetime.http.service import Budget
from duetime.metrics.meters import Meters
from duetime.metrics.scraper import Scraper
from duetime.metrics.siblings import Siblings
from duetime.model.clock import time_zone
from duetime.model.errors import InvalidSettings, InvalidTime
from duetime.model.names import is_host
from duetime.model.priority_shares import read_shares
from duetime.model.settings import Settings
from duetime.protocols.fast_path import RequestFastPath
from duetime.protocols.health import health_routes
from duetime.protocols.lmstfy import LmstfyAdmin, LmstfyApp, LmstfyParts, make_parts
from duetime.protocols.local_guard import local_only, same_origin_writes, why_foreign
from duetime.protocols.php_admin import PhpAdminApp
from duetime.protocols.v1 import V1App
from duetime.protocols.v1.app import TokenGate
from duetime.server.supervision.siblings import Alone

if TYPE_CHECKING:  # the extra [otel] is optional
    from duetime.tracing.server import ServerTracing


LOOPBACK = "127.0.0.0/8, ::1"


@dataclass(frozen=True)
class Callbacks:
    """The parts of the courier that other parts of a server process use."""

    service: TopicService
    logs: DailyLogs
    options: CourierOptions


def make_callbacks(settings: Settings, pools: Pools, registry_copy: RegistryCopy) -> Callbacks:
    """Raises InvalidSettings."""
    # With --dev, receivers usually run on the same machine, and only local clients can create topics.
    allowed = read_networks(f"{settings.callback_allow},{LOOPBACK}" if settings.dev else settings.callback_allow)
    zone = read_zone(settings.topic_timezone)
    service = TopicService(
        lambda: pools.registry,
        pools.engine,
        topics=TopicRegistry(lambda: pools.registry, registry_copy, mail_domains=mail_domains(settings)),
        targets=AllowedTargets(allowed),
        zone=zone,
    )
    options = CourierOptions(
        in_flight=settings.callback_in_flight,
        per_host=settings.callback_per_host,
        shares=read_shares(settings.priority_shares).default,
        lease_ms=round(settings.callback_lease.total_seconds() * 1000),
        allowed=allowed,
        zone=zone,
        grace_s=settings.drain_timeout.total_seconds(),
    )
    return Callbacks(service, DailyLogs(settings.topic_log, zone), options)


def mail_domains(settings: Settings) -> list[str]:
    """Raises InvalidSettings."""
    domains = settings.alert_mail_domains.lower().replace(",", " ").split()
    for domain in domains:
        if not is_host(domain):
            raise InvalidSettings(f"alert_mail_domains must be domains like example.com, got {domain!r}")
    return domains


def read_zone(name: str) -> tzinfo | None:
    if not name:
        return None
    try:
        return time_zone(name)
    except InvalidTime:
        raise InvalidSettings(f"topic_timezone must be a time zone like Asia/Shanghai or UTC, got {name!r}") from None


@dataclass(frozen=True)
class Runtime:
    """The objects of a process while it serves. `draining` is set when its drain begins; `siblings` are all processes
    of the server; `running` are its companions, once they run.
    """

    settings: Settings
    pools: Pools
    registry_copy: RegistryCopy
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    siblings: Siblings = field(default_factory=Alone)
    running: list[object] = field(default_factory=list[object])
    tracing: "ServerTracing | None" = None
    meters: Meters = field(default_factory=Meters)

    @cached_property
    def budget(self) -> Budget:
        """The memory limit of all HTTP listeners of the process."""
        return Budget(self.settings.max_buffered)

    @cached_property
    def alerts(self) -> Alerts:
        """Sends alerts to people."""
        alerts = Alerts(
            lambda: self.pools.registry,
            self.registry_copy,
            deployment=self.settings.registry_store or self.settings.store,
            repeat_s=self.settings.alert_repeat.total_seconds(),
            mail_domains=mail_domains(self.settings),
        )
        alerts.language = self.settings.language
        return alerts

    @cached_property
    def callbacks(self) -> Callbacks:
        """Topics, for the protocols and the courier."""
        return make_callbacks(self.settings, self.pools, self.registry_copy)

    @cached_property
    def lmstfy(self) -> LmstfyParts:
        """The parts that both of its listeners use."""
        return make_parts(self.settings, self.pools, self.registry_copy, self.scraper)

    @cached_property
    def fast_path(self) -> RequestFastPath | None:
        """The fast path of the API listeners; None if tracing has to see every request."""
        if self.tracing is not None:
            return None
        return RequestFastPath(
            self.registry_copy,
            self.lmstfy.access_log,
            grace_s=self.lmstfy.tokens.grace_s,
            guard=why_foreign if self.settings.dev else None,
        )

    @cached_property
    def live_figures(self) -> LiveFigures:
        """The live figures of the console."""
        settings = self.settings
        # What a console of its own counts would be taken for another server's figures.
        name = "" if settings.console_only else f"{settings.instance or socket.gethostname()}:{settings.admin_port}"
        return LiveFigures(
            self.pools, self.siblings, RateHistory(lambda: self.pools.registry, self.registry_copy, name)
        )

    @cached_property
    def scraper(self) -> Scraper:
        """Collects the metrics of this process, and of all processes."""
        return Scraper(self.pools, self.siblings, self.meters)


class MountedApp(NamedTuple):
    """`prefix` is one or more whole segments of the path, "/v1" or "/api"; "" takes what no other application wants."""

    prefix: str
    app: ASGIApp


def api_apps(runtime: Runtime) -> Sequence[MountedApp]:
    """The applications of the API listener."""
    lmstfy = runtime.lmstfy
    gate = TokenGate(lmstfy.tokens, lmstfy.limits)
    native = V1App(runtime.pools, gate, topics=runtime.callbacks.service, fast_path=runtime.fast_path)
    compatible = LmstfyApp(lmstfy, fast_path=runtime.fast_path)
    described = MountedApp("/", leads_to("/v1/docs", no_such_api))
    return (MountedApp("/v1", native), MountedApp("/api", compatible), described)


def admin_apps(runtime: Runtime) -> Sequence[MountedApp]:
    """The applications of the admin listener."""
    console = (MountedApp("/", leads_to("/console/", no_such_page)), MountedApp("/console", console_app(runtime)))
    if runtime.settings.console_only:
        return console
    php = [
        MountedApp(path, php_admin(runtime)) for path in ("/add.php", "/check.php") if runtime.settings.php_admin_token
    ]
    return (*console, *php, MountedApp("", LmstfyAdmin(runtime.lmstfy)))


def leads_to(page: str, otherwise: ASGIApp) -> ASGIApp:
    """Leads a browser that was given only the host and port to a page."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        is_page = scope["path"] == "/" and scope["method"] in ("GET", "HEAD")
        await (RedirectResponse(page) if is_page else otherwise)(scope, receive, send)

    return app


def console_app(runtime: Runtime) -> ASGIApp:
    """The console, imported with the first request for a page: templates and pages would make the start a third
    longer. The import runs in a thread, so that other requests are served meanwhile.
    """
    made: list[ASGIApp] = []

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if not made:
            module = await asyncio.to_thread(importlib.import_module, "duetime.console.app")
            made.append(module.make_console(_console_parts(runtime)))
        await made[0](scope, receive, send)

    return serve


def php_admin(runtime: Runtime) -> PhpAdminApp:
    settings = runtime.settings
    return PhpAdminApp(
        runtime.callbacks.service,
        lambda: runtime.pools.registry,
        pool=settings.tcp_pool,
        namespace=settings.tcp_namespace,
        token=settings.php_admin_token,
    )


def _console_parts(runtime: Runtime) -> ConsoleParts:
    return ConsoleParts(
        runtime.settings,
        runtime.pools,
        runtime.registry_copy,
        topics=runtime.callbacks.service,
        tokens=runtime.lmstfy.tokens,
        limits=runtime.lmstfy.limits,
        logins=runtime.lmstfy.logins,
        alerts=runtime.alerts,
        siblings=runtime.siblings,
        live=runtime.live_figures,
        draining=runtime.draining,
    )


def companions(runtime: Runtime) -> Sequence[AbstractAsyncContextManager[object]]:
    """The services of every process besides its listeners: entered before these listen, left when they are drained."""
    settings = runtime.settings
    added = RegisteredPools(runtime.pools, runtime.registry_copy)
    if settings.console_only:
        return (added, runtime.live_figures)
    targets = WatchTargets(settings.alert_memory, settings.alert_dead, settings.alert_lateness.total_seconds())
    callbacks = runtime.callbacks
    courier = Courier(
        runtime.pools,
        runtime.registry_copy,
        options=callbacks.options,
        alert=runtime.alerts.event,
        draining=runtime.draining,
    )
    runtime.live_figures.troubles = courier.troubles
    failing = FailingCallbacks(courier.streaks, runtime.pools, runtime.registry_copy, failures=settings.alert_callbacks)
    watchdog = Watchdog(runtime.pools, runtime.alerts, targets, more=failing)
    schedules = ScheduleRunners(runtime.pools)
    sizes = _bridge_sizes(runtime) if settings.bridges else ()
    export = _metrics_export(runtime) if settings.otel_endpoint else ()
    return (*sizes, *export, added, runtime.alerts, watchdog, callbacks.logs, courier, schedules, runtime.live_figures)


def _metrics_export(runtime: Runtime) -> Sequence[AbstractAsyncContextManager[object]]:
    """In one process of the server, unless OpenTelemetry's own variable says otherwise."""
    if runtime.siblings.name != "1" or os.environ.get("OTEL_METRICS_EXPORTER") == "none":
        return ()
    from duetime.tracing.metrics_export import MetricsExport  # noqa: PLC0415 - the extra [otel] is optional

    settings = runtime.settings
    instance = settings.instance or f"{socket.gethostname()}:{settings.admin_port}"
    return (MetricsExport(runtime.scraper, settings.otel_endpoint, instance=instance),)


def _bridge_sizes(runtime: Runtime) -> Sequence[AbstractAsyncContextManager[object]]:
    from duetime.server.bridge_sizes import BridgeSizes  # noqa: PLC0415 - few servers have it on

    settings = runtime.settings
    deployment = settings.registry_store or settings.store
    return (BridgeSizes(settings.bridges, runtime.pools, runtime.meters, deployment=deployment),)


def api_app(runtime: Runtime) -> ASGIApp:
    guard = local_only if runtime.settings.dev else None
    return _listener_app(runtime, api_apps(runtime), no_such_api, detailed=False, guard=guard)


def admin_app(runtime: Runtime) -> ASGIApp:
    guard = same_origin_writes if runtime.settings.accounts else local_only
    return _listener_app(runtime, admin_apps(runtime), no_such_page, detailed=True, guard=guard)


def _listener_app(
    runtime: Runtime,
    apps: Sequence[MountedApp],
    otherwise: Response,
    *,
    detailed: bool,
    guard: Callable[[ASGIApp], ASGIApp] | None,
) -> ASGIApp:
    def not_found(request: Request, error: Exception) -> Response:
        return otherwise

    health = Starlette(
        routes=health_routes(runtime.pools, runtime.draining, companions=runtime.running, detailed=detailed),
        exception_handlers={404: not_found, 405: not_found},
    )
    health.router.redirect_slashes = False
    named = [one for one in apps if one.prefix]
    last = [one.app for one in apps if not one.prefix]
    app = compose(
        [*named, MountedApp("/healthz", health), MountedApp("/readyz", health)], last[0] if last else otherwise
    )
    if runtime.tracing is not None:
        app = runtime.tracing.around(app)
    if guard is not None:
        app = guard(app)
    return runtime.lmstfy.access_log.around(app)


def compose(apps: Sequence[MountedApp], otherwise: ASGIApp) -> ASGIApp:
    """One application out of many; the first whose prefix fits serves."""
    table = [(one.prefix, one.prefix + "/", one.app) for one in apps]

    def app(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http":
            path: str = scope["path"]
            for exact, prefix, mounted in table:
                if path.startswith(prefix) or path == exact:
                    return mounted(scope, receive, send)
        return otherwise(scope, receive, send)

    return app


no_such_api = Response(b'{"error":"api not found"}', 404, media_type="application/json; charset=utf-8")
no_such_page = PlainTextResponse("404 page not found", 404)
