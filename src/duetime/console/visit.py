"""One request to the console: who asks, in which language, and how it is answered."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from duetime import __version__
from duetime.console import charts, formats
from duetime.console.action_log import ActionLog
from duetime.console.bulk_runs import BulkRuns
from duetime.console.languages import LANGUAGES, has_text, say, translate
from duetime.console.parts import ConsoleParts
from duetime.console.sessions import Session, Sessions
from duetime.console.users import ConsoleUsers, Role
from duetime.engine.engine import Engine
from duetime.model import humanise
from duetime.model.errors import Forbidden, NotFound
from duetime.model.masking import mask
from duetime.model.names import Queue, check_id, check_queue
from duetime.protocols.asgi import read_body

ROOT = "/console"
NOTICE = "duetime_notice"
LANGUAGE = "duetime_language"
TABS: Sequence[tuple[str, Role, bool]] = (
    ("overview", Role.VIEWER, False),
    ("queues", Role.VIEWER, False),
    ("jobs", Role.VIEWER, False),
    ("dead", Role.VIEWER, False),
    ("topics", Role.VIEWER, False),
    ("pools", Role.VIEWER, True),
    ("workers", Role.VIEWER, False),
    ("pipeline", Role.VIEWER, True),
    ("access", Role.ADMIN, True),
)
"""The pages in the order of the menu: name, least role, and whether a session for one namespace does not see it."""
FOLDER = Path(str(files("duetime.console")))


def link(path: str, **query: object) -> str:
    """An address of the console; empty values are left out of its query."""
    given = {name: str(value) for name, value in query.items() if value not in ("", None)}
    return f"{ROOT}/{path}" + (f"?{urlencode(given)}" if given else "")


def queue_link(pool: str, queue: Queue, path: str = "queue", **query: object) -> str:
    return link(path, pool=pool, namespace=queue.namespace, queue=queue.name, **query)


def job_link(pool: str, queue: Queue, job_id: str) -> str:
    return queue_link(pool, queue, "job", id=job_id)


def _units(context: Context) -> Mapping[str, str]:
    """How the visitor's language writes units of time."""
    visit: Visit = context["visit"]
    return {unit: visit.say(f"unit.{unit}") for unit in formats.ENGLISH_UNITS}


@pass_context
def _span(context: Context, ms: float) -> str:
    return formats.span(ms, _units(context))


@pass_context
def _seconds(context: Context, value: float | None) -> str:
    return formats.seconds(value, _units(context))


def make_environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(  # pyright: ignore[reportUnknownMemberType]
        number=formats.number,
        compact=formats.compact,
        span=_span,
        seconds=_seconds,
        duration=humanise.exact_duration,
        instant=formats.instant,
        second=formats.second,
        moment=formats.moment,
        size=humanise.size,
        mask=mask,
    )
    environment.globals.update(  # pyright: ignore[reportUnknownMemberType]
        link=link,
        queue_link=queue_link,
        job_link=job_link,
        bars=charts.bars,
        sparkline=charts.sparkline,
        languages=LANGUAGES,
        version=__version__,
        root=ROOT,
        Role=Role,
    )
    return environment


@dataclass(frozen=True)
class ConsoleServices:
    """What all visits share: users, sessions, the log of actions, the templates."""

    parts: ConsoleParts
    users: ConsoleUsers
    sessions: Sessions
    actions: ActionLog
    bulk_runs: BulkRuns
    environment: Environment


class Visit:
    """One request of one person, as every page and action of the console gets it: the session, the form, the language,
    and the ways to answer. `session` is None for a visitor who is not logged in; `fields` are those of the form that
    was posted.
    """

    def __init__(self, request: Request, services: ConsoleServices, session: Session | None, language: str) -> None:
        self.request = request
        self.services = services
        self.parts = services.parts
        self.session_or_none = session
        self.language = language
        self.fields: list[tuple[str, str]] = []
        self.query: Mapping[str, str] = request.query_params

    @property
    def session(self) -> Session:
        if self.session_or_none is None:
            raise Forbidden("not logged in")
        return self.session_or_none

    @property
    def is_partial(self) -> bool:
        """Whether the page's script sent this request, above all to refresh a page that is open."""
        return "hx-request" in self.request.headers

    def may(self, role: Role) -> bool:
        return self.session_or_none is not None and self.session_or_none.role >= role

    def say(self, key: str, **values: object) -> str:
        return say(self.language, key, **values)

    def word(self, section: str, name: str) -> str:
        """The text for a name that comes from elsewhere; the name itself if the catalogue has none."""
        key = f"{section}.{name}"
        return self.say(key) if has_text(self.language, key) else name.replace("_", " ")

    def store_says(self, text: str) -> str:
        """What a store tells of its kind and its persistence, as far as the catalogue knows it."""
        return translate(self.language, "store_says", text)

    def tabs(self) -> list[tuple[str, str, Role]]:
        """The pages that this visitor can open: name, address, least role."""
        whole = not self.session.namespace
        return [
            (name, link("" if name == "overview" else name), role)
            for name, role, everywhere in TABS
            if self.may(role) and (whole or not everywhere)
        ]

    # --- what the request asks for

    async def read_form(self) -> None:
        limit = max(self.parts.settings.max_body * 4, 1_048_576)
        body = await read_body(self.request.scope, self.request.receive, limit)
        self.fields = parse_qsl(body.decode(errors="replace"), keep_blank_values=True, max_num_fields=5_000)

    def field(self, name: str, otherwise: str = "") -> str:
        return next((value for key, value in self.fields if key == name), otherwise)

    def all_of(self, name: str) -> list[str]:
        return [value for key, value in self.fields if key == name]

    def given(self, name: str) -> str:
        """A value from the form that was posted, else from the address."""
        return self.field(name) or self.query.get(name, "")

    def pool(self) -> str:
        return self.given("pool") or "default"

    def queue(self) -> Queue:
        """The queue that is asked about. Raises InvalidName, and NotFound where the session does not see it."""
        queue = check_queue(self.given("namespace"), self.given("queue"))
        self.check_sees(self.pool(), queue.namespace)
        return queue

    def check_sees(self, pool: str, namespace: str) -> None:
        if not self.session.sees(pool, namespace):
            raise NotFound(f"there is no namespace {namespace!r} here")

    def job_id(self) -> str:
        return check_id(self.given("id"))

    def engine(self) -> Engine:
        return self.parts.pools.engine(self.pool())

    # --- answers

    def page(self, template: str, status: int = 200, **data: Any) -> Response:
        notice = {} if self.is_partial else self._notice()
        text = self.services.environment.get_template(template).render(
            visit=self,
            t=self.say,
            session=self.session_or_none,
            dev=self.parts.settings.dev,
            here=self._here(),
            notice=notice,
            **data,
        )
        response = HTMLResponse(text, status)
        if notice:
            response.delete_cookie(NOTICE, path=ROOT)
        return response

    def _here(self) -> str:
        query = self.request.url.query
        return self.request.url.path + (f"?{query}" if query else "")

    def _notice(self) -> dict[str, str]:
        """The message that the last action left in a cookie."""
        try:
            found = json.loads(unquote(self.request.cookies.get(NOTICE, "")))
            return {"kind": str(found["kind"]), "text": str(found["text"])}
        except (ValueError, KeyError, TypeError):
            return {}

    def go(self, to: str = "", text: str = "", *, kind: str = "done") -> Response:
        """Redirect to another page, by default the one that the form was on, which shows `text` once."""
        response = RedirectResponse(to or self.back(), 303)
        if text:
            value = quote(json.dumps({"kind": kind, "text": text[:1000]}))
            response.set_cookie(NOTICE, value, max_age=60, path=ROOT, httponly=True, samesite="strict")
        return response

    def back(self) -> str:
        """The page that the form was on."""
        for address in (self.field("back"), self.request.headers.get("referer", "")):
            parts = urlsplit(address)
            if parts.path == ROOT or parts.path.startswith(f"{ROOT}/"):
                return parts.path + (f"?{parts.query}" if parts.query else "")
        return f"{ROOT}/"

    async def log(self, action: str, subject: object, detail: str = "") -> None:
        await self.services.actions.write(self.session.user, action, str(subject), detail)


def chosen(options: Sequence[str], given: str) -> str:
    """What was asked for if it is one of the options, else the first."""
    return given if given in options else options[0]
