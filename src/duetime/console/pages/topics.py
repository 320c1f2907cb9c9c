"""The pages of topics, which are queues with a callback: register, edit, test with a transcript, count by day."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import msgspec
from starlette.responses import Response

from duetime.callbacks.failing_topics import TopicTrouble
from duetime.callbacks.outcome import CallbackAnswer, Verdict, judge
from duetime.callbacks.topic_registry import KIND, TopicAddress
from duetime.console.action_log import changes
from duetime.console.charts import Bar
from duetime.console.errors_seen import quote_error
from duetime.console.forms import FormReader, FormRefused, read_span, whole_number
from duetime.console.journal_lookup import last_calls
from duetime.console.pages.overview import day_bar, last_days
from duetime.console.visit import Visit, link, queue_link, read_number
from duetime.model import backoff
from duetime.model.condition import parse
from duetime.model.errors import DuetimeError, InvalidRequest, TopicExists, TopicNotFound
from duetime.model.humanise import span
from duetime.model.job import Counts, Job, State
from duetime.model.names import Queue, check_queue
from duetime.model.topic import (
    DEFAULT_CAP,
    DEFAULT_SCHEDULE,
    NEW_METHOD,
    NEW_SUCCESS,
    Method,
    Status,
    Success,
    Topic,
    check_topic,
)
from duetime.wire.convert import change_of, topic_of
from duetime.wire.messages import SampleOut, TopicChangeIn, TopicCountsOut, TopicIn, TopicOut

T = TypeVar("T", bound=msgspec.Struct)
Troubles = Mapping[str, Sequence[TopicTrouble]]

PER_PAGE = 50
FAILURES = 5
CALLS = 100
MOST_WAITS = 200
STEADY = 0.9
"""A topic with a smaller share of calls that worked today is not called healthy."""
CHECKS = ("lift_cap", "php_fields", "verify_tls")
NUMBERS = ("cap", "in_flight", "rate")
TEXTS = ("callback", "name", "delay", "method", "timeout", "retry_if", "schedule", "success", "priority", "creator")
HEALTHS = ("halted", "breaker", "failing", "unsteady", "offline", "ok", "idle")
"""In the order in which somebody should look at them."""
FINE = Topic(key="fine", callback="https://example.com/")
"""A topic in which nothing is wrong."""

LOGGED = [name for name in TopicOut.__struct_fields__ if name not in ("totals", "days", "secret")]
"""What the log of actions says of a topic that was edited."""


def _place(visit: Visit) -> TopicAddress:
    return TopicAddress(visit.pool(), visit.queue())


class TopicRow(NamedTuple):
    """`health` is ok, unsteady, idle, failing, breaker, halted or offline; `success` is the share of calls today that
    worked, `times` the median and p99 of the seconds that calls took lately.
    """

    pool: str
    topic: TopicOut
    health: str
    failures: int
    success: float | None
    waiting: int
    dead: int
    today: TopicCountsOut
    times: tuple[float | None, float | None]


def health_of(topic: TopicOut, troubles: Sequence[TopicTrouble], today: TopicCountsOut) -> tuple[str, int]:
    """How a topic is doing, and how many calls in a row have failed."""
    failures = max((one.failures for one in troubles), default=0)
    if topic.halted:
        return "halted", failures
    if topic.status == Status.OFFLINE:
        return "offline", failures
    if any(one.pause_s for one in troubles):
        return "breaker", failures
    if not failures and not today.notified:
        failures = today.failed
    if failures:
        return "failing", failures
    success = success_of(today)
    return ("idle" if success is None else "unsteady" if success < STEADY else "ok"), 0


def success_of(today: TopicCountsOut) -> float | None:
    calls = today.notified + today.failed
    return today.notified / calls if calls else None


async def _troubles(visit: Visit) -> Troubles:
    found: dict[str, list[TopicTrouble]] = {}
    for process in await visit.parts.live.processes():
        for trouble in process.troubles:
            found.setdefault(trouble.topic, []).append(trouble)
    return found


async def list_topics(visit: Visit) -> Response:
    await visit.parts.registry_copy.refresh()
    places = [TopicAddress.of_key(record.key) for record in visit.parts.registry_copy.list_records(KIND)]
    spaces = dict.fromkeys((place.pool, place.queue.namespace) for place in places)
    find = visit.query.get("find", "").strip().lower()
    rows: list[tuple[str, TopicOut]] = []
    for pool, namespace in spaces:
        if visit.sees(pool, namespace) and pool in visit.parts.pools:
            rows += [(pool, one) for one in await visit.parts.topics.list_topics(pool, namespace)]
    rows = [(pool, one) for pool, one in rows if find in one.topic.lower() or find in one.name.lower()]
    troubles = await _troubles(visit)
    rows = visit.sort(rows, _sorts(visit, troubles))
    page = visit.paged(rows, PER_PAGE)
    return await visit.page(
        "topics.html",
        rows=await _rows(visit, page.rows, troubles),
        find=find,
        page=page,
    )


def _sorts(visit: Visit, troubles: Troubles) -> Mapping[str, Callable[[tuple[str, TopicOut]], Any]]:
    """What topics can be sorted by without asking the stores about each of them."""
    counts = {(line.pool, line.queue): line.counts for line in visit.parts.live.snapshots.last.lines}

    def health(pool: str, one: TopicOut) -> int:
        own = troubles.get(TopicAddress(pool, Queue(one.namespace, one.topic)).key, [])
        return HEALTHS.index(health_of(one, own, today(one))[0])

    def count(pool: str, one: TopicOut) -> Counts:
        return counts.get((pool, Queue(one.namespace, one.topic)), Counts())

    return {
        "topic": lambda row: (row[1].namespace, row[1].topic),
        "health": lambda row: health(*row),
        "callback": lambda row: row[1].callback,
        "success": lambda row: 2 if (share := success_of(today(row[1]))) is None else share,
        "waiting": lambda row: -_waiting(count(*row)),
        "dead": lambda row: -count(*row).dead,
        "written": lambda row: -today(row[1]).written,
        "notified": lambda row: -today(row[1]).notified,
    }


def _waiting(counts: Counts) -> int:
    return counts.ready + counts.delayed + counts.leased


async def _rows(visit: Visit, topics: Sequence[tuple[str, TopicOut]], troubles: Troubles) -> list[TopicRow]:
    found: list[TopicRow] = []
    by_pool: dict[str, list[Queue]] = {}
    for pool, topic in topics:
        by_pool.setdefault(pool, []).append(Queue(topic.namespace, topic.topic))
    counts: dict[tuple[str, Queue], Counts] = {}
    for pool, queues in by_pool.items():
        try:
            counted = await visit.parts.pools.engine(pool).store.counts(queues)
        except DuetimeError:
            continue  # the pool does not answer; the topic's own numbers are missing, too
        counts |= {(pool, queue): one for queue, one in zip(queues, counted, strict=True)}
    times = await visit.parts.live.meters.run_times([(pool, one.namespace, one.topic) for pool, one in topics])
    for (pool, topic), took in zip(topics, times, strict=True):
        queue, of_today = Queue(topic.namespace, topic.topic), today(topic)
        own = troubles.get(TopicAddress(pool, queue).key, [])
        count = counts.get((pool, queue), Counts())
        health, success = health_of(topic, own, of_today), success_of(of_today)
        found.append(TopicRow(pool, topic, *health, success, _waiting(count), count.dead, of_today, took))
    return found


def today(topic: TopicOut) -> TopicCountsOut:
    return topic.days.get(datetime.now(UTC).strftime("%Y%m%d"), TopicCountsOut())


async def show_topic(visit: Visit, *, sample: SampleOut | None = None, secret: str = "", **checked: str) -> Response:
    place = _place(visit)
    topic = await visit.parts.topics.get(place)
    store = visit.parts.pools.engine(place.pool).store
    [counts] = await store.counts([place.queue])
    failures = visit.services.failures
    await failures.refresh(within_s=0.2)
    newest = islice(failures.newest(visit.session.sees, only=(place.pool, place.queue)), FAILURES)
    ids = [job.id for _, job in newest]
    dead: Sequence[Job | None] = await store.get(place.queue, ids) if ids else ()
    troubles = (await _troubles(visit)).get(place.key, [])
    calls = await last_calls(visit.parts.settings, place.pool, place.queue, CALLS)
    times = sorted(call.entry.ms for call in calls)
    return await visit.page(
        "topic.html",
        pool=place.pool,
        queue=place.queue,
        topic=topic,
        counts=counts,
        failures=[(job, quote_error(job.error)) for job in dead if job is not None and job.state is State.DEAD],
        troubles=troubles,
        health=health_of(topic, troubles, today(topic)),
        success=success_of(today(topic)),
        calls=calls,
        p95=times[int(len(times) * 0.95)] if times else None,
        today=today(topic),
        days=[(name, _bars(topic, name)) for name in ("written", "notified", "failed")],
        sample=sample,
        secret=secret,
        schedule=schedule_words(visit, topic.schedule, topic.cap),
        condition=checked.get("condition", topic.retry_if),
        answer=checked.get("answer", '{"code": 500, "msg": "busy"}'),
        verdict=checked.get("verdict", ""),
        **_options(),
    )


def schedule_words(visit: Visit, schedule: str, cap: int) -> str:
    """`1 m, 3 m, 5 m ... 12 tries over 2 h`; empty for a schedule that cannot be read."""
    try:
        policy = backoff.parse(schedule)
    except DuetimeError:
        return ""
    if isinstance(policy, backoff.Exponential):
        policy = backoff.Exponential(policy.base_ms, policy.factor, policy.cap_ms, jitter=0)
    waits = [policy.delay_ms(number) for number in range(1, min(cap, MOST_WAITS) + 1)]
    if not waits:
        return visit.say("topic.no_retries")
    first = ", ".join(span(wait, visit.units) for wait in waits[:3]) + (" …" if len(waits) > 3 else "")
    return visit.say("topic.schedule_words", waits=first, tries=cap + 1, span=span(sum(waits), visit.units))


def _options() -> dict[str, Any]:
    return {"methods": list(Method), "successes": list(Success), "priorities": ("high", "normal", "low")}


def _bars(topic: TopicOut, name: str) -> list[Bar]:
    counts = [(day, topic.days.get(f"{day:%Y%m%d}", TopicCountsOut())) for day in last_days()]
    return [day_bar(day, getattr(one, name)) for day, one in counts]


async def show_new_topic(visit: Visit, sample: SampleOut | None = None) -> Response:
    """An empty form, or one with the settings of another topic; with what a test call of it answered."""
    like: TopicOut | None = None
    if visit.query.get("like"):
        queue = check_queue(visit.query.get("namespace", ""), visit.query["like"])
        visit.check_sees(visit.pool(), queue.namespace)
        like = await visit.parts.topics.get(TopicAddress(visit.pool(), queue))
    new = {"new_method": NEW_METHOD, "new_success": NEW_SUCCESS}
    return await visit.page(
        "topic_new.html",
        pools=visit.parts.pools.names,
        topic=like,
        schedule=schedule_words(visit, like.schedule if like else DEFAULT_SCHEDULE, like.cap if like else DEFAULT_CAP),
        sample=sample,
        **new,
        **_options(),
    )


async def show_schedule(visit: Visit) -> Response:
    """What a retry schedule means that somebody is typing."""
    cap = read_number(visit.query.get("cap", ""))
    return visit.text(schedule_words(visit, visit.query.get("schedule", "")[:200], cap))


async def check_key(visit: Visit) -> Response:
    """Whether a key is free, in a few words: the form asks while the key is typed."""
    try:
        queue = check_queue(visit.query.get("namespace", "").strip(), visit.query.get("topic", "").strip())
        visit.check_sees(visit.pool(), queue.namespace)
        await visit.parts.topics.get(TopicAddress(visit.pool(), queue))
        text = visit.say("topic.key_taken")
    except TopicNotFound:
        text = visit.say("topic.key_free")
    except DuetimeError as error:
        text = visit.explain(error.message)
    return visit.text(text)


# --- actions


def _read(visit: Visit, kind: type[T]) -> T:
    """What the form says, in the words of the API's messages. Raises FormRefused with all that is wrong."""
    form = FormReader(visit)
    texts = {name: visit.field(name).strip() for name in TEXTS}
    fields: dict[str, Any] = {name: text for name, text in texts.items() if text}
    fields |= {name: "" for name in ("retry_if", "name", "creator") if not texts[name]}
    fields |= {name: visit.field(name) == "on" for name in CHECKS}
    for name in NUMBERS:
        if visit.field(name).strip():
            fields[name] = form.read(name, whole_number, 0)
    for name in ("delay", "timeout"):
        if name in fields:
            fields[name] = form.read(name, lambda text: f"{read_span(text)}ms", "0")
    fields["alert"] = visit.field("alert").replace(",", " ").split()
    secret = visit.field("secret")
    if secret in ("new", "none"):
        fields["secret"] = "" if secret == "none" else "new"
    if not texts["callback"]:
        form.refuse("callback", visit.say("form.required"))
    if kind is TopicIn:
        queue = form.read("topic", lambda text: check_queue("default", text.strip()), Queue("default", "x"))
        form.read("namespace", lambda text: check_queue(text.strip(), "x"), queue)
        fields["topic"] = queue.name
    _check_each(form, fields)
    form.check()
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        said, _, path = str(error).partition(" - at `$.")
        raise FormRefused({path.strip("`").partition("[")[0]: said}) from None


def _check_each(form: FormReader, fields: Mapping[str, Any]) -> None:
    """Check every field as if all others were right, so that all errors are found, not only the first."""
    for name, value in fields.items():
        if name in form.errors or name in ("topic", "secret"):
            continue
        try:
            message = msgspec.convert({name: value}, TopicChangeIn)
            check_topic(msgspec.structs.replace(FINE, **change_of(message)))
        except msgspec.ValidationError as error:
            form.refuse(name, str(error).partition(" - at")[0])
        except DuetimeError as error:
            form.refuse(name, error.message)


async def add_topic(visit: Visit) -> Response:
    message = _read(visit, TopicIn)
    queue = check_queue(visit.field("namespace").strip(), message.topic)
    visit.check_sees(visit.pool(), queue.namespace)
    try:
        await visit.parts.topics.add(TopicAddress(visit.pool(), queue), topic_of(message))
    except TopicExists:
        raise FormRefused({"topic": visit.say("topic.key_taken")}) from None
    except InvalidRequest as error:
        raise FormRefused({error.fields.get("path", "").removeprefix("$."): error.message}) from None
    await visit.log("add-topic", queue, message.callback)
    return visit.go(queue_link(visit.pool(), queue, "topic"), visit.say("topic.added", topic=queue.name))


async def try_topic(visit: Visit) -> Response:
    """Call the URL of a new topic once, before it is created. The call is not signed."""
    message = _read(visit, TopicIn)
    queue = check_queue(visit.field("namespace").strip(), message.topic)
    visit.check_sees(visit.pool(), queue.namespace)
    topic = msgspec.structs.replace(topic_of(message), secret="")
    body = b'{"sample": "1"}'
    sample = await visit.parts.topics.sample_of(TopicAddress(visit.pool(), queue), topic, body)
    await visit.log("test-topic", queue, sample.verdict)
    visit.is_tried = True
    return await show_new_topic(visit, sample)


async def edit_topic(visit: Visit) -> Response:
    place = _place(visit)
    message = _read(visit, TopicChangeIn)
    before = await visit.parts.topics.get(place)
    try:
        edited = await visit.parts.topics.edit(place, change_of(message))
    except InvalidRequest as error:
        raise FormRefused({error.fields.get("path", "").removeprefix("$."): error.message}) from None
    await visit.log(
        "edit-topic", place.queue, changes(before, edited, LOGGED) + (", a new secret" if edited.secret else "")
    )
    if edited.secret:
        # Only the answer to this post shows the secret, so that it is in no address and no cookie.
        return await show_topic(visit, secret=edited.secret)
    return visit.go(queue_link(place.pool, place.queue, "topic"), visit.say("topic.saved", topic=place.queue.name))


async def set_status(visit: Visit, *, status: Status) -> Response:
    place = _place(visit)
    await visit.parts.topics.set_status(place, status)
    await visit.log(f"topic-{status}", place.queue)
    return visit.go(text=visit.say(f"topic.now_{status}", topic=place.queue.name))


async def remove_topic(visit: Visit) -> Response:
    place = _place(visit)
    if visit.field("confirm").strip() != place.queue.name:
        raise InvalidRequest(visit.say("topic.remove_confirm", topic=place.queue.name))
    await visit.parts.topics.remove(place)
    await visit.log("remove-topic", place.queue)
    return visit.go(link("topics"), visit.say("topic.removed", topic=place.queue.name))


async def test_topic(visit: Visit) -> Response:
    sample = await visit.parts.topics.sample(_place(visit), visit.field("body").encode())
    await visit.log("test-topic", visit.queue(), sample.verdict)
    return await show_topic(visit, sample=sample)


async def check_condition(visit: Visit) -> Response:
    """Try a retry condition on a sample answer. The page's script gets the verdict alone, a plain form the page."""
    condition, answer = visit.field("condition"), visit.field("answer")
    try:
        parsed = parse(condition)
        verdict = judge(Topic(key="", callback=""), parsed, CallbackAnswer(200, answer.encode()))
        key = "topic.would_retry" if verdict is Verdict.CONDITION else f"topic.would_{verdict}"
        text = visit.say(key)
    except DuetimeError as error:
        text = visit.explain(error.message)
    if visit.is_partial:
        return visit.text(text)
    return await show_topic(visit, condition=condition, answer=answer, verdict=text)
