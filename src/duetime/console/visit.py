"""One request to the console: who asks, in which language, and how it is answered."""

import asyncio
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, tzinfo
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from jinja2 import Environment, FileSystemBytecodeCache, FileSystemLoader, StrictUndefined, Template, pass_context
from jinja2.bccache import Bucket
from jinja2.runtime import Context
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from duetime import __version__
from duetime.console import charts, formats
from duetime.console.action_log import ActionLog
from duetime.console.bulk_runs import BulkRuns
from duetime.console.failures import Failures
from duetime.console.icons import icon
from duetime.console.languages import LANGUAGES, explain, has_text, say, translate
from duetime.console.parts import ConsoleParts
from duetime.console.problems import quick_count
from duetime.console.rate_history import LIMITS
from duetime.console.searches import TextSearches
from duetime.console.sessions import Session, Sessions
from duetime.console.users import ConsoleUsers, Role
from duetime.engine.engine import Engine
from duetime.engine.schedules import SCHEDULES
from duetime.model import humanise
from duetime.model.clock import MAX_INSTANT, rfc3339, time_zone
from duetime.model.errors import Forbidden, InvalidTime, NotFound
from duetime.model.masking import mask
from duetime.model.names import Queue, check_id, check_queue
from duetime.model.when import When, read_when
from duetime.protocols.asgi import read_body

T = TypeVar("T")

ROOT = "/console"
NOTICE = "duetime_notice"
LANGUAGE = "duetime_language"
THEME, TIMES, ZONE, RATE, NAMESPACE = (f"duetime_{name}" for name in ("theme", "times", "zone", "rate", "namespace"))
"""Cookies of preferences; the page's script sets the browser's time zone, forms set the others."""
THEMES = ("auto", "light", "dark")
CLOCKS = ("local", "utc")
MOST_SPACES = 200
RATES = ("1", "5", "30", "0")
"""Seconds between two refreshes of an open page; 0 pauses them."""
SEEN = "@seen@"
"""Stands in a page for the digest of its refreshed part, which the page sends with the next refresh."""
MENU: Mapping[str, Sequence[str]] = {
    "work": ("overview", "queues", "jobs", "failures", "batches", "schedules"),
    "delivery": ("topics", "workers"),
    "system": ("stores", "alerts", "pipeline", "access", "audit"),
}
"""The pages by group, in the order of the menu. A session for one namespace does not see the group "system"."""
FOR_ADMINS = ("access", "audit")
FOLDER = Path(str(files("duetime.console")))
_NEEDED = re.compile(r'{% (?:extends|import|include) "([\w.]+)"')


def link(path: str, **query: object) -> str:
    """An address of the console; empty values are left out of its query."""
    given = {name: str(value) for name, value in query.items() if value not in ("", None)}
    return f"{ROOT}/{path}" + (f"?{urlencode(given)}" if given else "")


def queue_link(pool: str, queue: Queue, path: str = "queue", **query: object) -> str:
    return link(path, pool=pool, namespace=queue.namespace, queue=queue.name, **query)


def job_link(pool: str, queue: Queue, job_id: str) -> str:
    return queue_link(pool, queue, "job", id=job_id)


def _visit(context: Context) -> "Visit":
    return context["visit"]


@pass_context
def _span(context: Context, ms: float) -> str:
    return humanise.span(ms, _visit(context).units)


@pass_context
def _about(context: Context, ms: float) -> str:
    return humanise.rough_span(ms, _visit(context).units)


@pass_context
def _seconds(context: Context, value: float | None) -> str:
    limit = LIMITS.get(value or 0)
    return ("> " if limit else "") + formats.seconds(limit or value, _visit(context).units)


@pass_context
def _when(context: Context, at_ms: float) -> Markup:
    """A time from now, `in 32 m` or `5 m ago`, with the full time when it is pointed at."""
    visit, at = _visit(context), int(at_ms)
    return _time(visit, at, visit.from_now(at))


@pass_context
def _clock(context: Context, at_ms: float) -> Markup:
    """The time of day, with the day if it is not today, and the full time when it is pointed at."""
    visit, at = _visit(context), int(at_ms)
    return _time(visit, at, formats.clock_time(at, visit.zone, visit.now))


def _time(visit: "Visit", at: int, text: str) -> Markup:
    if text == formats.NONE:
        return Markup("\N{EN DASH}")
    title = formats.full_time(at, visit.zone)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(rfc3339(at), title, text)


class TemplateFiles(FileSystemBytecodeCache):
    """Compiled templates are kept in a private folder of the temporary folder: to compile one takes 10 to 40 ms. A
    folder that cannot be written keeps no page from being shown.
    """

    def dump_bytecode(self, bucket: Bucket) -> None:
        with suppress(OSError):
            super().dump_bytecode(bucket)


def _compiled_templates() -> TemplateFiles | None:
    try:
        return TemplateFiles()
    except (OSError, RuntimeError):  # the folder cannot be made, or belongs to another user
        return None


def make_environment() -> Environment:
    environment = Environment(
        bytecode_cache=_compiled_templates(),
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(  # pyright: ignore[reportUnknownMemberType]
        number=formats.number,
        compact=formats.compact,
        percent=formats.percent,
        span=_span,
        about=_about,
        seconds=_seconds,
        duration=humanise.exact_duration,
        chart_json=charts.chart_json,
        when=_when,
        clock=_clock,
        size=humanise.size,
        mask=mask,
    )
    environment.globals.update(  # pyright: ignore[reportUnknownMemberType]
        link=link,
        queue_link=queue_link,
        job_link=job_link,
        bars=charts.bars,
        sparkline=charts.sparkline,
        spark_bars=charts.spark_bars,
        icon=icon,
        themes=THEMES,
        clocks=CLOCKS,
        refresh_rates=RATES,
        seen_mark=SEEN,
        languages=LANGUAGES,
        version=__version__,
        root=ROOT,
        Role=Role,
    )
    return environment


class Templates:
    """Compiles a template, and those that it needs, in a thread when it is first needed: the API would wait 10 to 40 ms
    for each.
    """

    def __init__(self) -> None:
        self._environment = make_environment()
        self._loaded: dict[str, Template] = {}

    async def load(self, name: str) -> Template:
        if name not in self._loaded:
            self._loaded[name] = await asyncio.to_thread(self._load, name)
        return self._loaded[name]

    def _load(self, name: str) -> Template:
        for needed in _NEEDED.findall((FOLDER / "templates" / name).read_text()):
            self._load(needed)
        return self._environment.get_template(name)


@dataclass(frozen=True)
class ConsoleServices:
    """What all visits share: users, sessions, the log of actions, the templates."""

    parts: ConsoleParts
    users: ConsoleUsers
    sessions: Sessions
    actions: ActionLog
    bulk_runs: BulkRuns
    failures: Failures
    searches: TextSearches
    templates: Templates


class Paged(NamedTuple, Generic[T]):
    """One page of a list: `number` of `pages`, and how many rows the list has in all."""

    rows: Sequence[T]
    number: int
    pages: int
    total: int


class Visit:
    """One request of one person, as every page and action of the console gets it: the session, the form, the language,
    and the ways to answer. `session` is None for a visitor who is not logged in; `fields` are those of the form that
    was posted, and `errors` says what is wrong with them, by the name of the field; `is_tried`: the form was tried, and
    is shown again as it was.
    """

    def __init__(self, request: Request, services: ConsoleServices, session: Session | None, language: str) -> None:
        self.request = request
        self.services = services
        self.parts = services.parts
        self.session_or_none = session
        self.language = language
        self.fields: list[tuple[str, str]] = []
        self._errors: Mapping[str, str] = {}
        self.is_tried = False
        self.sorted_by, self.is_reversed = "", False
        self.query: Mapping[str, str] = request.query_params
        self.now = int(time.time() * 1000)

    @property
    def errors(self) -> Mapping[str, str]:
        return self._errors

    @errors.setter
    def errors(self, errors: Mapping[str, str]) -> None:
        self._errors = {name: self.explain(message) for name, message in errors.items()}

    def explain(self, message: str) -> str:
        """What an error says, in the visitor's language as far as that is known."""
        return explain(self.language, message)

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

    # --- what the visitor prefers

    def preference(self, cookie: str, options: Sequence[str]) -> str:
        return chosen(options, self.request.cookies.get(cookie, ""))

    @property
    def theme(self) -> str:
        return self.preference(THEME, THEMES)

    @property
    def times(self) -> str:
        return self.preference(TIMES, CLOCKS)

    @property
    def rate(self) -> int:
        return int(self.preference(RATE, RATES))

    @cached_property
    def zone(self) -> tzinfo:
        """The browser's time zone if its script has named it and the visitor does not prefer UTC."""
        name = unquote(self.request.cookies.get(ZONE, ""))[:64]
        if self.times == "utc" or not name or name in ("UTC", "Etc/UTC"):
            return UTC
        try:
            return time_zone(name)
        except InvalidTime:
            return UTC

    @cached_property
    def units(self) -> Mapping[str, str]:
        """How the visitor's language writes units of time."""
        return {unit: self.say(f"unit.{unit}") for unit in humanise.SPACED_UNITS}

    def from_now(self, at: int) -> str:
        """`in 32 m`, `5 m ago` or `now`; a dash for 0 and for times beyond the calendar."""
        if not 0 < at <= MAX_INSTANT:
            return formats.NONE
        if abs(at - self.now) < 1000:
            return self.say("time.now")
        key = "time.in" if at > self.now else "time.ago"
        return self.say(key, span=humanise.rough_span(abs(at - self.now), self.units))

    def read_time(self, text: str) -> When:
        """A time as the visitor types it. Raises InvalidTime."""
        return read_when(text, now_ms=self.now, zone=self.zone)

    @cached_property
    def scope(self) -> tuple[str, str]:
        """Pool and namespace that the visitor has chosen; empty for all of them."""
        if self.session.namespace:
            return self.session.pool, self.session.namespace
        pool, _, namespace = unquote(self.request.cookies.get(NAMESPACE, "")).partition("/")
        return (pool, namespace) if namespace and pool in self.parts.pools else ("", "")

    def sees(self, pool: str, namespace: str) -> bool:
        """Whether lists show this namespace: the session may see it, and the visitor has not chosen another one."""
        return self.session.sees(pool, namespace) and (not self.scope[1] or self.scope == (pool, namespace))

    def spaces(self) -> list[tuple[str, str]]:
        """The namespaces that the visitor can choose between."""
        lines = self.parts.live.snapshots.last.lines
        found = {(line.pool, line.queue.namespace) for line in lines if line.queue != SCHEDULES}
        if self.scope[1]:
            found.add(self.scope)
        return sorted(one for one in found if self.session.sees(*one))[:MOST_SPACES]

    @cached_property
    def troubles(self) -> int:
        """How many problems there are, for the menu and the title."""
        snapshot = self.parts.live.snapshots.last
        return quick_count(
            self.parts.registry_copy,
            snapshot,
            self.parts.topics.topics.known(),
            self.parts.live.troubles(),
            self.sees,
            whole=not self.session.namespace,
        )

    def menu(self) -> list[tuple[str, list[tuple[str, str, str, str, str]]]]:
        """The groups of pages that this visitor can open; of each page its name, address, label, number and tone."""
        snapshots = self.parts.live.snapshots
        sums = snapshots.sums(snapshots.last, *self.scope, self.sees)
        dead = sums.counts.dead
        numbers = {
            "overview": (formats.compact(self.troubles), "warm") if self.troubles else ("", ""),
            "queues": (formats.compact(sums.queues) if sums.queues else "", ""),
            "failures": (formats.compact(dead), "hot") if dead else ("", ""),
        }
        is_redis = all(url.startswith(("redis", "group:redis")) for url in self.parts.settings.pools.values())
        return [
            (
                group,
                [
                    (
                        name,
                        link("" if name == "overview" else name),
                        self.say("nav.redis" if name == "stores" and is_redis else f"nav.{name}"),
                        *numbers.get(name, ("", "")),
                    )
                    for name in pages
                    if self.may(Role.ADMIN) or name not in FOR_ADMINS
                ],
            )
            for group, pages in MENU.items()
            if group != "system" or not self.session.namespace
        ]

    def view(self) -> tuple[object, ...]:
        """Visitors with the same view see the same in the part of a page that is refreshed."""
        session = self.session
        preferences = (self.language, self.times, str(self.zone), self.scope)
        return self._here(), session.role, session.pool, session.namespace, *preferences

    # --- the order of a table

    def sort(self, rows: Iterable[T], columns: Mapping[str, Callable[[T], Any]]) -> list[T]:
        """By the column that the address names, else by the first one; `-name` is the other way round."""
        given = self.query.get("sort", "")
        self.sorted_by, self.is_reversed = chosen(list(columns), given.removeprefix("-")), given.startswith("-")
        return sorted(rows, key=columns[self.sorted_by], reverse=self.is_reversed)

    def sort_link(self, name: str) -> str:
        """This page from its beginning, by a column; the other way round if it is sorted by that one."""
        is_again = self.sorted_by == name and not self.is_reversed
        return self.changed(sort=f"-{name}" if is_again else name, page="", cursor="", trail="")

    def paged(self, rows: Sequence[T], per_page: int) -> "Paged[T]":
        """The rows of the page that the address names."""
        pages = max(1, -(-len(rows) // per_page))
        number = min(read_number(self.query.get("page", ""), 1), pages)
        return Paged(rows[(number - 1) * per_page : number * per_page], number, pages, len(rows))

    def changed(self, **query: object) -> str:
        """The address of this page with other values in its query; empty ones are left out."""
        path, _, kept = self._here().partition("?")
        given = {name: value for name, value in {**dict(parse_qsl(kept)), **query}.items() if value != ""}
        return path + (f"?{urlencode(given)}" if given else "")

    def is_tiered(self, pool: str) -> bool:
        return self.parts.pools.urls.get(pool, "").startswith("tiered:")

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

    def kept(self, name: str, otherwise: object = "") -> str:
        """What the visitor typed into a field, if its form is shown again; else what the form has there at first."""
        return self.given(name) if self.errors or self.is_tried else str(otherwise)

    def kept_check(self, name: str, *, otherwise: bool = False) -> bool:
        return self.field(name) == "on" if self.errors or self.is_tried else otherwise

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

    def text(self, text: str) -> Response:
        """A few words for a place of the page, which the page's script asks for."""
        return HTMLResponse(escape(text))

    async def page(self, name: str, status: int = 200, **data: Any) -> Response:
        template = await self.services.templates.load(name)
        await asyncio.sleep(0)  # to prepare a page and to draw it are two steps, between which the API is served
        notice = {} if self.is_partial else self._notice()
        text = template.render(
            visit=self,
            t=self.say,
            session=self.session_or_none,
            dev=self.parts.settings.dev,
            here=self._here(),
            notice=notice,
            now=self.now,
            **data,
        )
        refused = self.errors and self.request.method == "POST"
        digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest() if SEEN in text else ""
        response = HTMLResponse(text.replace(SEEN, digest), 422 if refused and status == 200 else status)
        if digest:
            response.headers["x-seen"] = digest
        if notice:
            response.delete_cookie(NOTICE, path=ROOT)
        return response

    def _here(self) -> str:
        """The address of this page; of the page that a form is on, if that was posted."""
        if self.request.method == "POST":
            return self.back()
        query = self.request.url.query
        return self.request.url.path + (f"?{query}" if query else "")

    def _notice(self) -> dict[str, str]:
        """The message that the last action left in a cookie."""
        try:
            found = json.loads(unquote(self.request.cookies.get(NOTICE, "")))
            return {"kind": str(found["kind"]), "text": str(found["text"]), "undo": str(found.get("undo", ""))}
        except (ValueError, KeyError, TypeError):
            return {}

    def go(self, to: str = "", text: str = "", *, kind: str = "done", undo: str = "") -> Response:
        """Redirect to another page, by default the one that the form was on, which shows `text` once, with a button
        that undoes the run `undo`.
        """
        response = RedirectResponse(to or self.back(), 303)
        if text:
            value = quote(json.dumps({"kind": kind, "text": text[:1000], "undo": undo}))
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


def read_number(text: str, least: int = 0) -> int:
    """A number of an address, which the page made; `least` for what is none."""
    return max(int(text), least) if text.isascii() and text.isdigit() and len(text) < 16 else least


def chosen(options: Sequence[str], given: str) -> str:
    """What was asked for if it is one of the options, else the first."""
    return given if given in options else options[0]
