"""Every address of the console on one screen, and what holds for all of them.

A page is a GET, an action a POST; each names the least role that it takes. Every answer carries a content security
policy without inline script or style; every POST must come from a page of the same origin. With --dev nobody logs in,
and only loopback is answered.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from duetime.console.action_log import ActionLog
from duetime.console.bulk_runs import BulkRuns
from duetime.console.failures import Failures
from duetime.console.forms import FormRefused
from duetime.console.languages import choose
from duetime.console.login import COOKIE, log_in, log_out, set_language, set_preferences, show_login
from duetime.console.pages import (
    access,
    alerts,
    batches,
    bulk,
    failures,
    job,
    jobs,
    overview,
    pipeline,
    queues,
    schedules,
    search,
    stores,
    tasks,
    topics,
    workers,
)
from duetime.console.pages.jobs import preview
from duetime.console.parts import ConsoleParts
from duetime.console.refreshes import Handler, Refreshes
from duetime.console.saved_views import delete_view, save_view
from duetime.console.searches import TextSearches
from duetime.console.sessions import DEV, Session, Sessions
from duetime.console.users import ConsoleUsers, Role
from duetime.console.visit import FOLDER, LANGUAGE, ROOT, ConsoleServices, Templates, Visit, link
from duetime.http.exchange import ClientGone
from duetime.model.errors import DuetimeError, Forbidden, NotFound
from duetime.model.topic import Status
from duetime.protocols.local_guard import OTHER_SITE, is_same_origin, local_only

log = logging.getLogger("duetime.console")

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Mapping[str, str] = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
}


@dataclass(frozen=True)
class ConsoleRoute:
    """`role` is the least role that is let in; None also lets in visitors who are not logged in. `form` is the page of
    an action's form: it is shown again, with what was typed and what is wrong with it, if the action is refused.
    `is_shared`: the page is the same for all visitors with the same view.
    """

    path: str
    handler: Handler
    role: Role | None = Role.VIEWER
    form: Handler | None = None
    is_shared: bool = False


def everywhere(handler: Handler) -> Handler:
    """For pages about the whole server: a session for one namespace does not see them."""

    async def serve(visit: Visit) -> Response:
        if visit.session.namespace:
            raise Forbidden(visit.say("error.forbidden"))
        return await handler(visit)

    return serve


PAGES: tuple[ConsoleRoute, ...] = (
    ConsoleRoute("/login", show_login, None),
    ConsoleRoute("/", overview.show_overview, is_shared=True),
    ConsoleRoute("/live", overview.stream),
    ConsoleRoute("/search", search.search),
    ConsoleRoute("/time", job.show_time),
    ConsoleRoute("/queues", queues.list_queues, is_shared=True),
    ConsoleRoute("/queue", queues.show_queue, is_shared=True),
    ConsoleRoute("/jobs", jobs.list_jobs, is_shared=True),
    ConsoleRoute("/job", job.show_job),
    ConsoleRoute("/body", job.download_body),
    ConsoleRoute("/export", jobs.export),
    ConsoleRoute("/new", job.show_new, Role.OPERATOR),
    ConsoleRoute("/bulk", bulk.show_bulk, Role.OPERATOR),
    ConsoleRoute("/bulk-run", bulk.show_run),
    ConsoleRoute("/failures", failures.show_failures, is_shared=True),
    ConsoleRoute("/failures-act", failures.preview_action, Role.OPERATOR),
    ConsoleRoute("/export-failures", failures.export),
    ConsoleRoute("/batches", batches.show_batches, is_shared=True),
    ConsoleRoute("/schedules", schedules.show_schedules, is_shared=True),
    ConsoleRoute("/schedule", schedules.show_schedule, Role.OPERATOR),
    ConsoleRoute("/backfill", schedules.show_backfill, Role.OPERATOR),
    ConsoleRoute("/schedule-means", schedules.show_means, Role.OPERATOR),
    ConsoleRoute("/topics", topics.list_topics, is_shared=True),
    ConsoleRoute("/topic", topics.show_topic, is_shared=True),
    ConsoleRoute("/topic-new", topics.show_new_topic, Role.OPERATOR),
    ConsoleRoute("/topic-key", topics.check_key, Role.OPERATOR),
    ConsoleRoute("/topic-schedule", topics.show_schedule, Role.OPERATOR),
    ConsoleRoute("/workers", workers.show_workers, is_shared=True),
    ConsoleRoute("/tasks", tasks.show_tasks, is_shared=True),
    ConsoleRoute("/stores", everywhere(stores.show_stores), is_shared=True),
    ConsoleRoute("/alerts", everywhere(alerts.show_alerts)),
    ConsoleRoute("/mail", everywhere(alerts.show_mail), Role.ADMIN),
    ConsoleRoute("/pipeline", everywhere(pipeline.show_pipeline)),
    ConsoleRoute("/report", everywhere(pipeline.show_report)),
    ConsoleRoute("/access", everywhere(access.show_access), Role.ADMIN),
    ConsoleRoute("/audit", everywhere(access.show_audit), Role.ADMIN),
    ConsoleRoute("/password", everywhere(access.show_password)),
)
ACTIONS: tuple[ConsoleRoute, ...] = (
    ConsoleRoute("/login", log_in, None),
    ConsoleRoute("/language", set_language, None),
    ConsoleRoute("/preferences", set_preferences),
    ConsoleRoute("/logout", log_out),
    # Pages that take many ids, which do not fit into an address.
    ConsoleRoute("/bulk", bulk.show_bulk, Role.OPERATOR),
    ConsoleRoute("/failures-act", failures.preview_action, Role.OPERATOR),
    ConsoleRoute("/do/save-view", save_view, Role.OPERATOR, jobs.list_jobs),
    ConsoleRoute("/do/delete-view", delete_view, Role.OPERATOR),
    ConsoleRoute("/do/search", search.search_all),
    ConsoleRoute("/do/stop-search", search.stop),
    ConsoleRoute("/do/snooze", overview.snooze, Role.OPERATOR),
    ConsoleRoute("/do/cancel-batch", batches.cancel_batch, Role.OPERATOR),
    ConsoleRoute("/do/shift-batch", batches.shift_batch, Role.OPERATOR, batches.show_batches),
    ConsoleRoute("/do/schedule", schedules.put_schedule, Role.OPERATOR, schedules.show_schedule),
    ConsoleRoute("/do/run-schedule", schedules.run_schedule, Role.OPERATOR),
    ConsoleRoute("/do/backfill", schedules.backfill_schedule, Role.OPERATOR, schedules.show_backfill),
    ConsoleRoute("/do/pause-schedule", partial(schedules.set_paused, paused=True), Role.OPERATOR),
    ConsoleRoute("/do/resume-schedule", partial(schedules.set_paused, paused=False), Role.OPERATOR),
    ConsoleRoute("/do/delete-schedule", schedules.delete_schedule, Role.OPERATOR),
    ConsoleRoute("/do/pause", partial(queues.set_paused, paused=True), Role.OPERATOR),
    ConsoleRoute("/do/resume", partial(queues.set_paused, paused=False), Role.OPERATOR),
    ConsoleRoute("/do/rules", queues.change_rules, Role.OPERATOR, queues.show_queue),
    ConsoleRoute("/do/purge", queues.purge, Role.OPERATOR),
    ConsoleRoute("/do/cancel", job.cancel, Role.OPERATOR),
    ConsoleRoute("/do/run-now", job.run_now, Role.OPERATOR),
    ConsoleRoute("/do/reschedule", job.reschedule, Role.OPERATOR, job.show_job),
    ConsoleRoute("/do/release", job.release, Role.OPERATOR),
    ConsoleRoute("/do/kill", job.kill, Role.OPERATOR),
    ConsoleRoute("/do/push", job.push, Role.OPERATOR, job.show_new),
    ConsoleRoute("/do/bulk", bulk.do_bulk, Role.OPERATOR, bulk.show_bulk),
    ConsoleRoute("/do/undo-bulk", bulk.undo, Role.OPERATOR),
    ConsoleRoute("/do/failures", failures.act, Role.OPERATOR),
    ConsoleRoute("/do/add-topic", topics.add_topic, Role.OPERATOR, topics.show_new_topic),
    ConsoleRoute("/do/try-topic", topics.try_topic, Role.OPERATOR, topics.show_new_topic),
    ConsoleRoute("/do/edit-topic", topics.edit_topic, Role.OPERATOR, topics.show_topic),
    ConsoleRoute("/do/online", partial(topics.set_status, status=Status.ONLINE), Role.OPERATOR),
    ConsoleRoute("/do/offline", partial(topics.set_status, status=Status.OFFLINE), Role.OPERATOR),
    ConsoleRoute("/do/remove-topic", topics.remove_topic, Role.OPERATOR),
    ConsoleRoute("/do/test-topic", topics.test_topic, Role.OPERATOR),
    ConsoleRoute("/do/check-condition", topics.check_condition, Role.OPERATOR),
    ConsoleRoute("/do/restart-workers", workers.restart_workers, Role.OPERATOR),
    ConsoleRoute("/do/pause-workers", partial(workers.set_paused, paused=True), Role.OPERATOR),
    ConsoleRoute("/do/resume-workers", partial(workers.set_paused, paused=False), Role.OPERATOR),
    ConsoleRoute("/do/add-store", everywhere(stores.add_store), Role.ADMIN, everywhere(stores.show_stores)),
    ConsoleRoute("/do/remove-store", everywhere(stores.remove_store), Role.ADMIN),
    ConsoleRoute("/do/remove-pool", everywhere(stores.remove_pool), Role.ADMIN),
    ConsoleRoute("/do/drain", everywhere(partial(stores.switch_drain, drains=True)), Role.ADMIN),
    ConsoleRoute("/do/undrain", everywhere(partial(stores.switch_drain, drains=False)), Role.ADMIN),
    ConsoleRoute("/do/add-address", alerts.add_address, Role.ADMIN, alerts.show_alerts),
    ConsoleRoute("/do/remove-address", alerts.remove_address, Role.ADMIN),
    ConsoleRoute("/do/mail-server", alerts.set_mail_server, Role.ADMIN, alerts.show_mail),
    ConsoleRoute("/do/test-mail", everywhere(alerts.test_mail), Role.ADMIN),
    ConsoleRoute("/do/test-alert", alerts.test_alert, Role.ADMIN, alerts.show_alerts),
    ConsoleRoute("/do/password", everywhere(access.change_password), Role.VIEWER, access.show_password),
    ConsoleRoute("/do/add-user", access.add_user, Role.ADMIN, access.show_access),
    ConsoleRoute("/do/remove-user", access.remove_user, Role.ADMIN),
    ConsoleRoute("/do/end-session", access.end_session, Role.ADMIN),
    ConsoleRoute("/do/add-token", access.add_token, Role.ADMIN, access.show_access),
    ConsoleRoute("/do/revoke-token", access.revoke_token, Role.ADMIN),
    ConsoleRoute("/do/shares", everywhere(access.set_shares), Role.ADMIN),
    ConsoleRoute("/do/limit", access.set_limit, Role.ADMIN),
)


def make_console(parts: ConsoleParts) -> ASGIApp:
    """An ASGI application for everything under /console."""
    registry = lambda: parts.pools.registry  # noqa: E731
    users = ConsoleUsers(parts.registry_copy, registry)
    sessions = Sessions(parts.registry_copy, registry, users, parts.settings)
    failed = Failures(parts.pools, parts.live.snapshots)
    searches = TextSearches(registry, parts.pools.engine, preview)
    parts.live.closers += [failed.close, searches.close]
    services = ConsoleServices(
        parts,
        users,
        sessions,
        ActionLog(registry),
        BulkRuns(registry, parts.pools.engine),
        failed,
        searches,
        Templates(),
    )
    serve = partial(_serve, services, Refreshes())
    routes: list[BaseRoute] = [
        *(Route(ROOT + one.path, serve(one), methods=["GET"]) for one in PAGES),
        *(Route(ROOT + one.path, serve(one), methods=["POST"]) for one in ACTIONS),
        Route(ROOT, _to_overview),
        Mount(f"{ROOT}/static", StaticFiles(directory=FOLDER / "static"), name="static"),
        Route(ROOT + "/{rest:path}", serve(ConsoleRoute("", _no_such_page)), methods=["GET"]),
    ]
    app = _with_headers(Starlette(routes=routes))
    return local_only(app) if parts.settings.dev else app


async def _to_overview(request: Request) -> Response:
    return RedirectResponse(f"{ROOT}/", 308)


async def _no_such_page(visit: Visit) -> Response:
    raise NotFound(visit.say("error.no_page"))


def _with_headers(app: ASGIApp) -> ASGIApp:
    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if not scope["path"].startswith(f"{ROOT}/static/"):
                    headers["cache-control"] = "no-store"
            await send(message)

        try:
            await app(scope, receive, sending)
        except ClientDisconnect:
            raise ClientGone("the client has gone") from None

    return serve


def _serve(
    services: ConsoleServices, refreshes: Refreshes, route: ConsoleRoute
) -> Callable[[Request], Awaitable[Response]]:
    async def serve(request: Request) -> Response:
        language = choose(
            request.cookies.get(LANGUAGE, ""),
            request.headers.get("accept-language", ""),
            services.parts.settings.language,
        )
        visit = Visit(request, services, None, language)
        try:
            visit.session_or_none = await _session(services, request)
            if request.method == "POST":
                check_same_origin(request)
            if route.role is not None:
                if visit.session_or_none is None:
                    return _to_login(visit)
                if not visit.may(route.role):
                    raise Forbidden(visit.say("error.role", role=visit.say(f"role.{route.role.name.lower()}")))
            if request.method == "POST":
                await visit.read_form()
            return await _handle(visit, route, refreshes)
        except DuetimeError as error:
            return await _problem(visit, error)
        except (ClientGone, OSError):
            raise
        except Exception:
            log.exception("console_failed")
            return await _problem(visit, DuetimeError(visit.say("error.crashed")))

    return serve


async def _handle(visit: Visit, route: ConsoleRoute, refreshes: Refreshes) -> Response:
    if visit.is_partial:
        return await refreshes.answer(visit, route.handler, is_shared=route.is_shared)
    if route.form is None:
        return await route.handler(visit)
    try:
        return await route.handler(visit)
    except DuetimeError as error:
        if error.status >= 500 or error.status in (401, 403, 404):
            raise
        visit.errors = error.errors if isinstance(error, FormRefused) else {"": error.message}
        return await route.form(visit)


async def _session(services: ConsoleServices, request: Request) -> Session | None:
    if services.parts.settings.dev:
        return DEV
    return await services.sessions.find(request.cookies.get(COOKIE, ""))


def check_same_origin(request: Request) -> None:
    """Raises Forbidden unless a page of this origin sent the request. Every browser says where a request comes from."""
    says = "sec-fetch-site" in request.headers or "origin" in request.headers
    if not says or not is_same_origin(request.scope):
        raise Forbidden(OTHER_SITE)


def _to_login(visit: Visit) -> Response:
    wanted = "" if visit.request.method == "POST" else visit.request.url.path
    query = visit.request.url.query
    to = link("login", next=f"{wanted}?{query}" if query and wanted else wanted)
    if visit.is_partial:
        return Response(status_code=401, headers={"hx-redirect": to})
    return RedirectResponse(to, 303)


async def _problem(visit: Visit, error: DuetimeError) -> Response:
    """A page that says what is wrong. An action that was refused leads back to the page that it was posted from."""
    refused = error.status < 500 and error.status not in (401, 403)
    if visit.request.method == "POST" and visit.session_or_none is not None and refused:
        return visit.go(text=visit.say("error.refused", message=visit.explain(error.message)), kind="problem")
    return await visit.page("error.html", error.status, error=error, message=visit.explain(error.message))
