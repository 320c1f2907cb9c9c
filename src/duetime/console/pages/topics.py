"""The pages of topics, which are queues with a callback: register, edit, test with a transcript, count by day."""

from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.responses import HTMLResponse, Response

from duetime.callbacks.outcome import CallbackAnswer, Verdict, judge
from duetime.callbacks.topic_registry import KIND, TopicAddress
from duetime.console.action_log import changes
from duetime.console.charts import Bar
from duetime.console.pages.overview import day_bar, last_days
from duetime.console.visit import Visit, link, queue_link
from duetime.model.condition import parse
from duetime.model.errors import DuetimeError, InvalidRequest, TopicNotFound
from duetime.model.job import State
from duetime.model.names import check_queue
from duetime.model.topic import NEW_METHOD, NEW_SUCCESS, Method, Status, Success, Topic
from duetime.wire.topics import SampleOut, TopicChangeIn, TopicCountsOut, TopicIn, TopicOut, change_of, topic_of

PER_PAGE = 15
FAILURES = 5
CHECKS = ("lift_cap", "php_fields", "verify_tls")
NUMBERS = ("cap", "in_flight", "rate")
TEXTS = ("callback", "name", "delay", "method", "timeout", "retry_if", "schedule", "success", "priority", "creator")

LOGGED = [name for name in TopicOut.__struct_fields__ if name not in ("totals", "days", "secret")]
"""What the log of actions says of a topic that was edited."""


def _place(visit: Visit) -> TopicAddress:
    return TopicAddress(visit.pool(), visit.queue())


async def list_topics(visit: Visit) -> Response:
    await visit.parts.registry_copy.refresh()
    places = [TopicAddress.of_key(record.key) for record in visit.parts.registry_copy.list_records(KIND)]
    spaces = dict.fromkeys((place.pool, place.queue.namespace) for place in places)
    find = visit.query.get("find", "").strip().lower()
    rows: list[tuple[str, TopicOut]] = []
    for pool, namespace in spaces:
        if visit.session.sees(pool, namespace) and pool in visit.parts.pools:
            rows += [(pool, one) for one in await visit.parts.topics.list_topics(pool, namespace)]
    rows = [(pool, one) for pool, one in rows if find in one.topic.lower() or find in one.name.lower()]
    pages = max(1, -(-len(rows) // PER_PAGE))
    given = visit.query.get("page", "1")
    page = min(max(int(given), 1), pages) if given.isdigit() and len(given) < 6 else 1
    return visit.page(
        "topics.html",
        rows=[(pool, one, today(one)) for pool, one in rows[(page - 1) * PER_PAGE : page * PER_PAGE]],
        find=find,
        page=page,
        pages=pages,
        total=len(rows),
    )


def today(topic: TopicOut) -> TopicCountsOut:
    return topic.days.get(datetime.now(UTC).strftime("%Y%m%d"), TopicCountsOut())


async def show_topic(visit: Visit) -> Response:
    return await _page(visit)


async def _page(visit: Visit, *, sample: SampleOut | None = None, secret: str = "", **checked: str) -> Response:
    place = _place(visit)
    topic = await visit.parts.topics.get(place)
    store = visit.parts.pools.engine(place.pool).store
    [counts] = await store.counts([place.queue])
    dead = await store.list_jobs(place.queue, State.DEAD, limit=FAILURES)
    return visit.page(
        "topic.html",
        pool=place.pool,
        queue=place.queue,
        topic=topic,
        counts=counts,
        failures=dead.jobs,
        troubles=[
            trouble
            for process in await visit.parts.live.processes()
            for trouble in process.troubles
            if trouble.topic == place.key
        ],
        today=today(topic),
        days=[(name, _bars(topic, name)) for name in ("written", "notified", "failed")],
        sample=sample,
        secret=secret,
        condition=checked.get("condition", topic.retry_if),
        answer=checked.get("answer", '{"code": 500, "msg": "busy"}'),
        verdict=checked.get("verdict", ""),
        **_options(),
    )


def _options() -> dict[str, Any]:
    return {"methods": list(Method), "successes": list(Success), "priorities": ("high", "normal", "low")}


def _bars(topic: TopicOut, name: str) -> list[Bar]:
    counts = [(day, topic.days.get(f"{day:%Y%m%d}", TopicCountsOut())) for day in last_days()]
    return [day_bar(day, getattr(one, name)) for day, one in counts]


async def show_new_topic(visit: Visit) -> Response:
    new = {"new_method": NEW_METHOD, "new_success": NEW_SUCCESS}
    return visit.page("topic_new.html", pools=visit.parts.pools.names, topic=None, **new, **_options())


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
        text = error.message
    return _text(visit, text)


def _text(visit: Visit, text: str) -> Response:
    return HTMLResponse(visit.services.environment.from_string("{{ text }}").render(text=text))


# --- actions


def _fields(visit: Visit) -> dict[str, Any]:
    """What the form says, in the words of the API's messages. Raises InvalidRequest."""
    fields: dict[str, Any] = {name: visit.field(name).strip() for name in TEXTS if visit.field(name).strip()}
    fields |= {name: "" for name in ("retry_if", "name", "creator") if not visit.field(name).strip()}
    fields |= {name: visit.field(name) == "on" for name in CHECKS}
    for name in NUMBERS:
        text = visit.field(name).strip()
        if not text:
            continue
        if not text.isascii() or not text.isdigit() or len(text) > 9:
            raise InvalidRequest(f"{name}: {text[:40]!r} is not a number")
        fields[name] = int(text)
    fields["alert"] = visit.field("alert").replace(",", " ").split()
    secret = visit.field("secret")
    if secret in ("new", "none"):
        fields["secret"] = "" if secret == "none" else "new"
    return fields


def _read(fields: dict[str, Any], kind: type[msgspec.Struct]) -> Any:
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest(str(error)) from None


async def add_topic(visit: Visit) -> Response:
    queue = check_queue(visit.field("namespace").strip(), visit.field("topic").strip())
    visit.check_sees(visit.pool(), queue.namespace)
    message = _read({**_fields(visit), "topic": queue.name}, TopicIn)
    await visit.parts.topics.add(TopicAddress(visit.pool(), queue), topic_of(message))
    await visit.log("add-topic", queue, message.callback)
    return visit.go(queue_link(visit.pool(), queue, "topic"), visit.say("topic.added", topic=queue.name))


async def edit_topic(visit: Visit) -> Response:
    place = _place(visit)
    message = _read(_fields(visit), TopicChangeIn)
    before = await visit.parts.topics.get(place)
    edited = await visit.parts.topics.edit(place, change_of(message))
    await visit.log(
        "edit-topic", place.queue, changes(before, edited, LOGGED) + (", a new secret" if edited.secret else "")
    )
    if edited.secret:
        # Only the answer to this post shows the secret, so that it is in no address and no cookie.
        return await _page(visit, secret=edited.secret)
    return visit.go(queue_link(place.pool, place.queue, "topic"), visit.say("topic.saved", topic=place.queue.name))


async def set_online(visit: Visit) -> Response:
    return await _set(visit, Status.ONLINE)


async def set_offline(visit: Visit) -> Response:
    return await _set(visit, Status.OFFLINE)


async def _set(visit: Visit, status: Status) -> Response:
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
    return await _page(visit, sample=sample)


async def check_condition(visit: Visit) -> Response:
    """Try a retry condition on a sample answer. The page's script gets the verdict alone, a plain form the page."""
    condition, answer = visit.field("condition"), visit.field("answer")
    try:
        parsed = parse(condition)
        verdict = judge(Topic(key="", callback=""), parsed, CallbackAnswer(200, answer.encode()))
        key = "topic.would_retry" if verdict is Verdict.CONDITION else f"topic.would_{verdict}"
        text = visit.say(key)
    except DuetimeError as error:
        text = error.message
    if visit.is_partial:
        return _text(visit, text)
    return await _page(visit, condition=condition, answer=answer, verdict=text)
