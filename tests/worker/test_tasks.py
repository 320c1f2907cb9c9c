"""Tasks as a program uses them: calling, pushing, arguments, payloads, uniqueness, events."""

import asyncio
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

import duetime
from duetime.model.errors import InvalidName, InvalidRequest, InvalidSettings, InvalidTime
from duetime.model.job import Event, State
from duetime.wire.payload import Payload, describe, read, write
from duetime.worker.arguments import Arguments
from duetime.worker.events import TaskEvent
from duetime.worker.pusher import Outgoing, Work
from tests.worker.conftest import stored

# --- calling and pushing


def test_a_task_is_still_its_function(app: duetime.App) -> None:
    @app.task
    def add(left: int, right: int = 1) -> int:
        """Adds."""
        return left + right

    @app.task(name="slowly")
    async def slowly() -> str:
        return "done"

    assert add(2) == 3
    assert add.__doc__ == "Adds."
    assert asyncio.run(slowly()) == "done"
    assert (add.is_async, slowly.is_async) == (False, True)
    assert list(app.tasks) == [
        "tests.worker.test_tasks.test_a_task_is_still_its_function.<locals>.add",
        "slowly",
    ]


def test_delay_later_and_at_push_jobs_for_then(app: duetime.App) -> None:
    @app.task(queue="mail", name="send")
    def send(to: str) -> None: ...

    now = send.delay("ann")
    later = send.later("10m", "ann")
    at = send.at(datetime(2090, 1, 1, tzinfo=UTC), "ann")
    past = send.at(datetime(2020, 1, 1, tzinfo=UTC), "ann")
    negative = send.later(timedelta(seconds=-5), "ann")

    assert stored(app, now.id, "mail").state is State.READY
    assert later.due_at - later.born == 600_000
    assert at.due_at == 3_786_912_000_000
    assert stored(app, past.id, "mail").state is stored(app, negative.id, "mail").state is State.READY


def test_a_due_time_in_seconds_is_refused_with_the_milliseconds(app: duetime.App) -> None:
    @app.task
    def send(to: str) -> None: ...

    handle = send.later("1h", "ann")

    with pytest.raises(InvalidTime, match="give 1795236220000"):
        send.at(1_795_236_220, "ann")
    with pytest.raises(InvalidTime, match="give 1795236220000"):
        handle.reschedule(due_at=1_795_236_220)


async def test_the_twins_push_inside_a_running_loop(app: duetime.App) -> None:
    @app.task
    def send(to: str) -> None: ...

    moved = [
        await send.delay_async("ann"),
        await send.later_async("10m", "ann"),
        await send.at_async("2090-01-01T00:00:00Z", "ann"),
        send.delay("ann"),  # blocks the loop for a moment, and works
    ]

    assert [one.event for one in moved] == [Event.ACCEPTED] * 4
    await app.close_async()


def test_a_loop_that_ends_leaves_nothing_open(app: duetime.App) -> None:
    @app.task
    def send(to: str) -> None: ...

    before = set(threading.enumerate())
    for _ in range(2):
        asyncio.run(send.delay_async("ann"))

    assert set(threading.enumerate()) <= before


def test_a_bulk_is_pushed_in_steps_and_answers_in_order(app: duetime.App, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.task(queue="mail", name="send")
    def send(to: str, text: str = "hello") -> None: ...

    calls: list[object] = []
    real = app.client_pusher.send
    monkeypatch.setattr(app.client_pusher, "send", lambda call: calls.append(call) or real(call))
    queued: list[str] = []
    app.on("queued")(lambda event: queued.append(event.job.id if event.job else ""))

    moved = send.bulk([("ann",), {"to": "bob", "text": "hi"}, *((str(n),) for n in range(1000))], delay="1h")

    assert len(calls) == 3
    assert queued == [one.id for one in moved]
    assert len(moved) == 1002
    bodies = [json.loads(stored(app, one.id, "mail").body)["data"] for one in moved[:3]]
    assert bodies == [{"to": "ann"}, {"to": "bob", "text": "hi"}, {"to": "0"}]
    assert moved[0].due_at - moved[0].born == 3_600_000
    assert send.bulk([]) == []


def test_a_bulk_with_one_wrong_call_pushes_nothing(app: duetime.App) -> None:
    @app.task(name="send")
    def send(to: str) -> None: ...

    for wrong in ((7,), {"whom": "ann"}, "ann"):
        with pytest.raises(InvalidRequest):
            send.bulk([("ann",), wrong])  # type: ignore[list-item]
    with duetime.connect(app.url) as client:
        assert client.queue("default").size() == 0


async def test_a_bulk_of_unique_tasks_inside_a_loop(app: duetime.App) -> None:
    @app.task(name="index", unique_for="1h")
    def index(page: int) -> None: ...

    first, twice = await index.bulk_async([(1,), (1,)])
    async with duetime.connect_async(app.url) as client:
        [delivery] = await client.queue("default").reserve()
        await client.kill(delivery)
    again, other = await index.bulk_async([(1,), (2,)])

    assert [one.event for one in (first, twice, again, other)] == [
        *(Event.ACCEPTED, Event.KEPT, Event.ACCEPTED, Event.ACCEPTED)
    ]
    assert again.id == f"{first.id}~{first.born}"
    await app.close_async()


# --- arguments


@dataclass
class Address:
    street: str
    zip: int | None = None


class Colour(Enum):
    RED = "red"


class Item(msgspec.Struct):
    name: str
    price: Decimal


def everything(
    address: Address,
    items: "list[Item]",
    /,
    when: datetime,
    *rest: UUID,
    colour: Colour = Colour.RED,
    free: Any = None,
    **more: int,
) -> None: ...


def test_arguments_travel_by_their_hints() -> None:
    arguments = Arguments("everything", everything)
    when, one, two = datetime.now(UTC), uuid4(), uuid4()
    call = ((Address("Ring", 1), [Item("cup", Decimal("1.10"))], when, one, two), {"colour": Colour.RED, "n": 3})

    args, kwargs = arguments.unpack(arguments.pack(*call))

    assert (tuple(args), kwargs) == call


def test_arguments_that_were_not_given_are_left_to_the_function() -> None:
    arguments = Arguments("everything", everything)
    text = arguments.pack((Address("Ring"), [], datetime.now(UTC)), {})
    assert json.loads(text).keys() == {"address", "items", "when"}
    assert arguments.unpack(text)[1].keys() == {"when"}


@pytest.mark.parametrize(
    ("args", "kwargs", "why"),
    [
        ((), {}, "missing a required argument: 'to'"),
        (("ann", 1, 2, 3), {}, "too many positional arguments"),
        ((7,), {}, "to: Expected `str`, got `int`"),
        (("ann",), {"n": "many"}, "n: Expected `int`, got `str`"),
        (("ann",), {"free": object()}, "Encoding objects of type object is unsupported"),
        (("ann",), {"other": 1}, "got an unexpected keyword argument 'other'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_at_the_push(
    app: duetime.App, args: tuple[Any, ...], kwargs: dict[str, Any], why: str
) -> None:
    @app.task(name="send")
    def send(to: str, n: int = 1, free: Any = None) -> None: ...

    with pytest.raises(InvalidRequest, match=r"arguments must fit send\(to: str, n: int = 1") as refused:
        send.delay(*args, **kwargs)
    assert why in refused.value.message


def test_an_unknown_argument_from_elsewhere_is_an_error_not_a_loss() -> None:
    def send(to: str) -> None: ...

    with pytest.raises(InvalidRequest, match="cc"):
        Arguments("send", send).unpack(b'{"to":"ann","cc":"bob"}')


# --- payloads


def test_a_payload_has_laravels_fields(app: duetime.App) -> None:
    @app.task(name="send", tries=3, backoff="1s,5s,1m", timeout="90s", max_exceptions=2, fail_on_timeout=True)
    def send(to: str) -> None: ...

    moved = send.later("10m", "ann")
    job = stored(app, moved.id)

    fields = json.loads(job.body)
    assert UUID(fields.pop("uuid"))
    assert abs(fields.pop("createdAt") - job.born // 1000) <= 1
    assert fields == {
        "displayName": "send",
        "job": "send",
        "data": {"to": "ann"},
        "maxTries": 3,
        "maxExceptions": 2,
        "failOnTimeout": True,
        "backoff": "1,5,60",
        "timeout": 90,
        "retryUntil": None,
        "delay": 600,
    }
    assert job.tries == 3
    assert describe(job.body) == 'send(to="ann")'


def test_retry_until_counts_from_when_the_job_is_due(app: duetime.App) -> None:
    @app.task(retry_until="1h")
    def relative() -> None: ...

    @app.task(retry_until=datetime(2090, 1, 1, tzinfo=UTC))
    def absolute() -> None: ...

    before = app.clock.now_ms()
    job = stored(app, relative.later("10m").id)
    after = app.clock.now_ms()
    until = read(job.body).retryUntil
    assert until is not None
    assert before + 4_200_000 <= until * 1000 < after + 4_201_000, "whole seconds, rounded up"
    assert job.tries == 0
    assert read(stored(app, absolute.delay().id).body).retryUntil == 3_786_912_000


def test_foreign_payloads_are_read_in_all_their_shapes() -> None:
    old = read(b'{"job":"Mail@send","data":{"to":"ann"},"timeoutAt":7,"attempts":0,"id":"x"}')
    assert (old.name, old.displayName, old.retryUntil, bytes(old.data)) == ("Mail@send", "Mail", 7, b'{"to":"ann"}')
    assert read(b'{"job":"a","backoff":3,"delay":null}').backoff == "3"
    for wrong in (b"", b"hello", b"[]", b'{"data":1}', b"\xff"):
        with pytest.raises(ValueError, match=r".+"):
            read(wrong)
        assert describe(wrong) is None


def test_listeners_may_add_fields_to_the_payload(app: duetime.App) -> None:
    @app.task(name="send")
    def send() -> None: ...

    @app.on("queueing")
    def tag(event: TaskEvent) -> None:
        event.extra["tags"] = ["mail"]

    fields = json.loads(stored(app, send.delay().id).body)
    assert (fields["tags"], fields["job"]) == (["mail"], "send")


def test_a_preview_is_short_and_complete_text() -> None:
    payload = Payload(displayName="send", name="send", data=msgspec.Raw(b'{"text":"' + b"x" * 200 + b'"}'), uuid="")
    shown = describe(write(payload))
    assert shown is not None
    assert len(shown) == 80
    assert shown.startswith('send(text="xxx')


# --- unique tasks


def test_a_unique_task_is_pushed_once_while_it_waits_or_runs(app: duetime.App) -> None:
    @app.task(name="index", unique_for="1h")
    def index(page: int) -> None: ...

    skipped: list[str] = []
    app.on("unique_skipped")(lambda event: skipped.append(event.job.id if event.job else ""))

    first, second, other = index.delay(1), index.later("5m", 1), index.delay(2)

    assert (first.event, second.event, other.event) == (Event.ACCEPTED, Event.KEPT, Event.ACCEPTED)
    assert first.id == second.id != other.id
    assert skipped == [first.id]
    with duetime.connect(app.url) as client:
        queue = client.queue("default")
        [leased, _] = queue.reserve(limit=2)
        assert index.delay(1).event is Event.KEPT
        client.ack(leased)
        assert index.delay(1).event is Event.ACCEPTED


def test_a_dead_or_old_job_does_not_block_a_unique_push(app: duetime.App) -> None:
    @app.task(name="index", unique_for="1h")
    def index(page: int) -> None: ...

    @app.task(name="often", unique_for="1ms")
    def often() -> None: ...

    with duetime.connect(app.url) as client:
        first = index.delay(1)
        [delivery] = client.queue("default").reserve()
        client.kill(delivery)
        second = index.delay(1)
        assert (second.event, second.id) == (Event.ACCEPTED, f"{first.id}~{first.born}")
        assert index.delay(1).event is Event.KEPT
        assert client.queue("default").get(first.id).state is State.DEAD

        old = often.delay()
        while (new := often.delay()).event is Event.KEPT:
            pass
        assert new.id == f"{old.id}~{old.born}"


# --- what is wrong


def test_mistakes_are_refused_when_they_are_made(app: duetime.App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DUETIME_URL", raising=False)
    with pytest.raises(InvalidSettings, match="DUETIME_URL"):
        duetime.App()
    for options, kind in (
        ({"queue": "no queue"}, InvalidName),
        ({"timeout": "soon"}, InvalidTime),
        ({"backoff": "sometimes"}, InvalidTime),
        ({"tries": -1}, InvalidRequest),
        ({"retry_until": datetime(2090, 1, 1)}, InvalidTime),
    ):
        with pytest.raises(kind):
            app.task(**options)(lambda: None)
    app.task(name="twice")(lambda: None)
    with pytest.raises(InvalidRequest, match="task name must be unique, got 'twice'"):
        app.task(name="twice")(lambda: None)
    with pytest.raises(InvalidRequest, match=r"event must be one of .*, got 'procesing'"):
        app.on("procesing")(lambda event: None)
    with pytest.raises(InvalidRequest, match="current_job"):
        duetime.current_job()


def test_a_pusher_can_be_put_in_the_place_of_the_usual_one(app: duetime.App) -> None:
    class Recorder:
        def __init__(self) -> None:
            self.seen: list[Outgoing] = []

        def push(self, many: Sequence[Outgoing]) -> Work[list[duetime.Moved]]:
            self.seen += many
            yield from ()
            return [duetime.Moved(Event.ACCEPTED, outgoing.job.id, 1) for outgoing in many]

    @app.task(name="send")
    def send(to: str) -> None: ...

    app.pusher = recorder = Recorder()
    send.delay("ann")
    asyncio.run(send.later_async("1m", "bob"))

    assert [(one.name, one.job.delay_ms) for one in recorder.seen] == [("send", 0), ("send", 60_000)]
