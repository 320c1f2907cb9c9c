"""The page Schedules: jobs that are pushed again and again, when each runs next, and how its last run ended."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
from cronsim import CronSim, CronSimError
from msgspec import UNSET, Raw
from starlette.responses import Response

from duetime.console.formats import clock_time, number
from duetime.console.forms import FormReader, read_span, whole_number
from duetime.console.pages.job import MOST_TRIES, read_attributes
from duetime.console.visit import Visit, chosen, link
from duetime.engine.schedules import SCHEDULES, Schedules
from duetime.model.clock import duration_ms, rfc3339
from duetime.model.errors import NOT_JSON, DuetimeError, InvalidRequest, ScheduleNotFound
from duetime.model.job import DEFAULT_TRIES
from duetime.model.names import Queue, check_id, check_namespace, check_queue
from duetime.model.schedules import MAX_CRON, cron, every
from duetime.wire import convert
from duetime.wire.messages import JobScheduleIn, ScheduleOut
from duetime.wire.payload import TICKS

MOST = 200
CRON_FIELDS = 5
MISSED = ("last", "all", "none")
OVERLAP = ("allow", "skip")
PRIORITIES = ("high", "normal", "low")
NEXT_RUNS = 3
LONGEST = MAX_CRON + 60
"""The longest text of a schedule that is shown or explained."""


class ScheduleRow(NamedTuple):
    pool: str
    schedule: ScheduleOut

    @property
    def when(self) -> str:
        """`every 15m`, `0 9 * * mon-fri Asia/Shanghai`."""
        return self.schedule.schedule.removeprefix("cron ")[:LONGEST]

    @property
    def words(self) -> str:
        return cron_words(self.schedule.schedule)

    @property
    def last_queue(self) -> Queue:
        return Queue(self.schedule.namespace, self.schedule.queue)


SORTS: Mapping[str, Callable[[ScheduleRow], Any]] = {
    "next": lambda row: (row.schedule.paused, row.schedule.next_at),
    "name": lambda row: (row.schedule.namespace, row.schedule.name),
    "queue": lambda row: (row.schedule.task, row.schedule.queue),
    "last": lambda row: -row.schedule.last_at,
}


def cron_words(text: str) -> str:
    """What a cron expression means, in English; empty where that cannot be said."""
    kind, _, rest = text.partition(" ")
    fields = rest.split() if len(text) <= LONGEST else []
    if kind != "cron" or len(fields) < CRON_FIELDS:
        return ""
    try:
        said = CronSim(" ".join(fields[:CRON_FIELDS]), datetime.now(UTC)).explain()
    except (CronSimError, ValueError):
        return ""
    return f"{said}, {fields[CRON_FIELDS]}" if len(fields) > CRON_FIELDS else said


async def show_schedules(visit: Visit) -> Response:
    snapshot = await visit.parts.live.snapshots.for_page(is_partial=visit.is_partial)
    found: list[ScheduleRow] = []
    for pool in visit.parts.pools.names:
        queues = [line.queue for line in snapshot.lines if line.pool == pool]
        declared = [one.namespace for one in queues if one.name == TICKS and visit.sees(pool, one.namespace)]
        if declared or SCHEDULES in queues or not snapshot.is_known:
            schedules = Schedules(visit.parts.pools.engine(pool))
            listed = await schedules.list_of(declared, lambda namespace, pool=pool: visit.sees(pool, namespace))
            found += [ScheduleRow(pool, one) for one in listed]
    return await visit.page("schedules.html", rows=visit.sort(found, SORTS)[:MOST], hidden=max(len(found) - MOST, 0))


async def show_schedule(visit: Visit) -> Response:
    """The form of a schedule, new or with its present values."""
    known: ScheduleOut | None = None
    if visit.query.get("name") and not visit.errors:
        namespace, name = _place(visit)
        known = await Schedules(visit.engine()).get(namespace, name)
        if known.declared:
            raise InvalidRequest(visit.say("schedule.declared_text"))
    is_edit = bool(visit.given("edit") or known)
    body, encoding = _body_of(known)
    when, zone = _when_of(known)
    return await visit.page(
        "schedule.html",
        known=known,
        is_edit=is_edit,
        when=when,
        zone=zone or str(visit.zone),
        body=body,
        encoding=visit.field("encoding") or encoding,
        attributes="\n".join(f"{name}={value}" for name, value in known.attributes.items()) if known else "",
        tries=known.tries if known else DEFAULT_TRIES,
        ttl=f"{known.ttl_ms}ms" if known and known.ttl_ms else "",
        pools=visit.parts.pools.names,
        means=_means(visit, visit.kept("when", when), visit.kept("tz", zone or str(visit.zone))),
        missed=MISSED,
        overlap=OVERLAP,
        priorities=PRIORITIES,
    )


def _body_of(known: ScheduleOut | None) -> tuple[str, str]:
    """The arguments of a task as JSON, else the body: text, or base64 if it is no text."""
    if known is None:
        return "", "text"
    if known.task:
        return msgspec.json.encode(known.arguments).decode(), "text"
    if known.body_b64 is not UNSET:
        return known.body_b64, "base64"
    return convert.read_body(known.body, UNSET).decode(), "text"


def _when_of(known: ScheduleOut | None) -> tuple[str, str]:
    """The text and the time zone of the form, from `every 1h` or `cron 0 9 * * * UTC`."""
    if known is None or known.schedule.startswith("every "):
        return (known.schedule if known else ""), ""
    expression, _, zone = known.schedule.removeprefix("cron ").rpartition(" ")
    return expression, zone


def read_schedule(text: str, zone: str) -> Mapping[str, Any]:
    """The fields `every`, or `cron` and `tz`, of a text such as `15m`, `every 2 hours` or `0 9 * * mon-fri`."""
    given = " ".join(text.split())
    if not given:
        raise InvalidRequest("schedule must be an interval such as 15m, or a cron expression such as 0 9 * * mon-fri")
    if len(given.split()) >= CRON_FIELDS and not given.startswith("every "):
        cron(given, zone)
        return {"cron": given, "tz": zone}
    interval_ms = read_span(given.removeprefix("every ").strip())
    every(interval_ms / 1000)
    return {"every": f"{interval_ms}ms"}


def _means(visit: Visit, text: str, zone: str) -> str:
    """`At 09:00 on Monday through Friday. Next: 09:00, ...`; empty for what cannot be read."""
    try:
        fields = read_schedule(text, zone)
        schedule = cron(fields["cron"], zone) if "cron" in fields else every(duration_ms(fields["every"]) / 1000)
    except DuetimeError:
        return ""
    runs = [visit.now]
    for _ in range(NEXT_RUNS):
        runs.append(schedule.after(runs[-1]))
    words = cron_words(schedule.text) if visit.language == "en" else ""
    times = ", ".join(clock_time(at, visit.zone, visit.now) for at in runs[1:])
    return (f"{words}. " if words else "") + visit.say("schedule.next_runs", times=times)


async def show_means(visit: Visit) -> Response:
    """What a schedule means that somebody is typing."""
    text, zone = visit.query.get("when", "")[:LONGEST], visit.query.get("tz", "UTC")[:60].strip()
    said = _means(visit, text, zone)
    if not said and text.strip():
        try:
            read_schedule(text, zone)
        except DuetimeError as error:
            said = visit.explain(error.message)
    return visit.text(said)


# --- actions


def _place(visit: Visit) -> tuple[str, str]:
    """Namespace and name. Raises InvalidName, and NotFound where the session does not see the namespace."""
    namespace = check_namespace(visit.given("namespace").strip())
    visit.check_sees(visit.pool(), namespace)
    return namespace, check_id(visit.given("name").strip())


async def put_schedule(visit: Visit) -> Response:
    form, is_edit = FormReader(visit), bool(visit.field("edit"))
    namespace = form.read("namespace", lambda text: check_namespace(text.strip()), "")
    name = form.read("name", lambda text: check_id(text.strip()), "")
    queue = form.read("queue", lambda text: check_queue("any", text.strip()).name, "")
    zone = visit.field("tz").strip() or "UTC"
    when = form.read("when", lambda text: read_schedule(text, zone), {})
    tries = form.read("tries", lambda text: whole_number(text, most=MOST_TRIES), 0)
    ttl_ms = form.read("ttl", lambda text: read_span(text) if text.strip() else 0, 0)
    attributes = form.read("attributes", read_attributes, {})
    payload = form.read("body", lambda text: _payload(visit, text), {})
    form.check()
    message = JobScheduleIn(
        queue=queue,
        tries=tries,
        ttl=f"{ttl_ms}ms",
        attributes=attributes,
        priority=chosen(PRIORITIES, visit.field("priority")),  # pyright: ignore[reportArgumentType]
        missed=chosen(MISSED, visit.field("missed")),  # pyright: ignore[reportArgumentType]
        overlap=chosen(OVERLAP, visit.field("overlap")),  # pyright: ignore[reportArgumentType]
        **when,
        **payload,
    )
    visit.check_sees(visit.pool(), namespace)
    schedules = Schedules(visit.engine())
    if not is_edit:
        try:
            await schedules.get(namespace, name)
        except ScheduleNotFound:
            pass
        else:
            form.refuse("name", visit.say("schedule.taken"))
            form.check()
    saved = await schedules.put(namespace, name, message)
    await visit.log("edit-schedule" if is_edit else "add-schedule", f"{namespace}/{name}", saved.schedule)
    return visit.go(
        link("schedules"), visit.say("schedule.saved", name=name, span=visit.from_now(saved.next_at or visit.now))
    )


def _payload(visit: Visit, text: str) -> dict[str, Any]:
    """The fields of a task with its arguments, or of a body. Raises InvalidRequest."""
    if task := visit.field("task").strip():
        try:
            return {"task": task, "arguments": msgspec.json.decode(text.strip() or "{}", type=dict[str, Raw])}
        except NOT_JSON:
            raise InvalidRequest(visit.say("schedule.not_arguments")) from None
    if visit.field("encoding") == "base64":
        return {"body_b64": "".join(text.split())}
    body, body_b64 = convert.write_body(text.replace("\r\n", "\n").encode())
    return {"body": body, "body_b64": body_b64}


async def run_schedule(visit: Visit) -> Response:
    namespace, name = _place(visit)
    shown = await Schedules(visit.engine()).run(namespace, name)
    await visit.log("run-schedule", f"{namespace}/{name}")
    return visit.go(text=visit.say("schedule.asked" if shown.declared else "schedule.ran", name=name))


async def show_backfill(visit: Visit) -> Response:
    """The form that asks for the span of the past whose runs are pushed."""
    namespace, name = _place(visit)
    return await visit.page("backfill.html", known=await Schedules(visit.engine()).get(namespace, name))


async def backfill_schedule(visit: Visit) -> Response:
    namespace, name = _place(visit)
    form = FormReader(visit)
    since = form.read("since", lambda text: visit.read_time(text).at(visit.now), 0)
    until = form.read("until", lambda text: visit.read_time(text).at(visit.now) if text.strip() else None, None)
    form.check()
    done = await Schedules(visit.engine()).backfill(namespace, name, since, until)
    detail = visit.say("schedule.backfilled", pushed=number(done.pushed), count=number(done.runs), name=name)
    await visit.log("backfill-schedule", f"{namespace}/{name}", f"{rfc3339(since)}: {done.pushed} of {done.runs} runs")
    return visit.go(link("schedules"), detail)


async def set_paused(visit: Visit, *, paused: bool) -> Response:
    (namespace, name), schedules = _place(visit), Schedules(visit.engine())
    shown = await (schedules.pause(namespace, name) if paused else schedules.resume(namespace, name))
    await visit.log("pause-schedule" if paused else "resume-schedule", f"{namespace}/{name}")
    if paused:
        return visit.go(text=visit.say("schedule.now_paused", name=name))
    return visit.go(text=visit.say("schedule.now_resumed", name=name, span=visit.from_now(shown.next_at)))


async def delete_schedule(visit: Visit) -> Response:
    namespace, name = _place(visit)
    await Schedules(visit.engine()).delete(namespace, name)
    await visit.log("delete-schedule", f"{namespace}/{name}")
    return visit.go(link("schedules"), visit.say("schedule.deleted", name=name))
