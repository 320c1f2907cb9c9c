"""php-delayqueue's rules for callbacks: what is sent, what counts as success, what is tried again and when."""

import asyncio
from datetime import UTC, datetime
from itertools import pairwise
from time import time

import msgspec
import pytest

from duetime.callbacks.request import retries_of
from duetime.model.errors import JobNotFound, TopicNotFound, TopicOffline
from duetime.model.job import Event, NewJob, Priority
from duetime.model.names import Queue
from duetime.model.topic import Method, Status, Success
from tests.courier.conftest import World
from tests.courier.receiver import EMPTY, OK, Call, Receiver, Says
from tests.plugins.ports import find_free_port
from tests.plugins.until import until


async def test_a_get_carries_the_fields_in_the_query(world: World, receiver: Receiver) -> None:
    await world.topic(callback=f"{receiver.url}/mail?shop=1")

    await world.add("a:b/1", to="ann & bob", n=3, yes=True, no=False, none=None, deep={"x": [1]})
    [call] = await receiver.got(1)

    assert (call.method, call.path, call.body) == ("GET", "/mail", b"")
    fields = call.fields
    assert (fields["shop"], fields["to"], fields["n"]) == ("1", "ann & bob", "3")
    assert (fields["yes"], fields["no"], fields["none"], fields["deep"]) == ("1", "0", "", '{"x":[1]}')
    assert set(fields) == {"shop", "to", "n", "yes", "no", "none", "deep", "notify_time", "dq_set_time"}
    assert call.headers["user-agent"].startswith("duetime/")
    await world.gone("a:b/1")


async def test_a_post_carries_the_fields_as_a_form(world: World, receiver: Receiver) -> None:
    await world.topic(method=Method.POST)

    await world.add("1", to="ann")
    [call] = await receiver.got(1)

    assert (call.method, call.target) == ("POST", "/mail")
    assert call.headers["content-type"] == "application/x-www-form-urlencoded"
    assert call.fields["to"] == "ann"
    assert {"mail", "1"}.isdisjoint(call.fields.values())


async def test_a_topic_may_send_the_whole_body_as_json(world: World, receiver: Receiver) -> None:
    await world.topic(method=Method.JSON)

    await world.add("1", deep={"x": [1, None]})
    [call] = await receiver.got(1)

    assert call.headers["content-type"] == "application/json"
    assert msgspec.json.decode(call.body)["deep"] == {"x": [1, None]}


@pytest.mark.parametrize(
    ("method", "body", "sent"),
    [
        (Method.POST, b"plain text", {"body": "plain text"}),
        (Method.GET, b"\xff\x00", {"body_b64": "/wA="}),
        (Method.POST, b"[1]", {"body": "[1]"}),
    ],
)
async def test_a_body_without_fields_is_one_field(
    world: World, receiver: Receiver, method: Method, body: bytes, sent: dict[str, str]
) -> None:
    await world.topic(method=method)

    await world.engine.push(world.place("mail").queue, [NewJob("1", body)])
    [call] = await receiver.got(1)

    assert call.fields == sent


@pytest.mark.parametrize(
    ("body", "sent"), [(b"[1]", b"[1]"), (b"plain", b'"plain"'), (b"\xff", b'{"body_b64":"/w=="}')]
)
async def test_json_is_json_whatever_was_pushed(world: World, receiver: Receiver, body: bytes, sent: bytes) -> None:
    await world.topic(method=Method.JSON)

    await world.engine.push(world.place("mail").queue, [NewJob("1", body)])
    [call] = await receiver.got(1)

    assert call.body == sent


async def test_a_job_is_due_after_the_topics_delay_or_at_its_fix_time(world: World) -> None:
    topic = await world.topic(delay_ms=3_600_000, priority=Priority.HIGH)
    before = int(time() * 1000)

    await world.add("delayed", to="ann")
    fixed = "2037-11-15 09:00:00"
    await world.service.jobs.add(world.place("mail"), "fixed", {"to": "bob"}, fix_time=fixed)
    delayed, at = await world.job("delayed"), await world.job("fixed")

    assert delayed
    assert at
    assert before + topic.delay_ms <= delayed.due_at <= round(time() * 1000) + topic.delay_ms
    assert (delayed.priority, delayed.tries) == (Priority.HIGH, 0)
    assert at.due_at == datetime(2037, 11, 15, 9, tzinfo=UTC).timestamp() * 1000
    kept = msgspec.json.decode(at.body)
    assert kept["notify_time"] == fixed
    assert datetime.strptime(kept["dq_set_time"], "%Y-%m-%d %H:%M:%S")


async def test_get_and_delete_by_topic_and_id_also_while_offline(world: World) -> None:
    await world.topic(delay_ms=3_600_000)
    topic_jobs, place = world.service.jobs, world.place("mail")
    await world.add("a:1", to="ann")
    await world.topics.set_status(place, Status.OFFLINE)

    assert msgspec.json.decode(await topic_jobs.get(place, "a:1"))["to"] == "ann"
    assert (await topic_jobs.delete(place, "a:1")).event is Event.CANCELLED
    with pytest.raises(JobNotFound):
        await topic_jobs.get(place, "a:1")
    with pytest.raises(JobNotFound):
        await topic_jobs.delete(place, "a:1")


async def test_unregistered_and_offline_topics_take_no_jobs_but_deliver_what_they_have(
    world: World, receiver: Receiver
) -> None:
    topic = await world.topic(delay_ms=3_600_000)
    await world.add("before")
    await world.topics.set_status(world.place("mail"), Status.OFFLINE)

    with pytest.raises(TopicOffline):
        await world.add("late")
    with pytest.raises(TopicNotFound):
        await world.add("1", key="nowhere")
    await world.engine.reschedule(world.place("mail").queue, ["before"])
    await receiver.got(1)
    await world.gone("before")

    assert topic.status is Status.ONLINE
    await world.topics.set_status(world.place("mail"), Status.ONLINE)
    await world.add("again")


async def test_adding_again_replaces_the_job(world: World, receiver: Receiver) -> None:
    await world.topic(delay_ms=3_600_000)
    await world.add("1", to="ann")
    await world.add("1", to="bob")

    await world.engine.reschedule(world.place("mail").queue, ["1"])
    [call] = await receiver.got(1)

    assert call.fields["to"] == "bob"
    await world.gone("1")


@pytest.mark.parametrize("body", [b"", b"0"])
async def test_an_empty_answer_is_asked_for_three_times_and_then_again_in_a_minute(
    world: World, receiver: Receiver, body: bytes
) -> None:
    receiver.answer = lambda call: Says(body)
    topic = await world.topic()

    await world.add("1")
    job = await world.waits("1")

    assert len(receiver.calls) == 3
    assert all(later.at_ms - earlier.at_ms >= 9 for earlier, later in pairwise(receiver.calls))  # of whole milliseconds
    assert job.due_at >= receiver.calls[-1].at_ms + 60_000
    assert "exp_notify_nums" not in receiver.calls[0].fields
    assert (await world.totals(topic))["notified"] == 0


async def test_the_first_answer_of_an_attempt_that_is_not_empty_counts(world: World, receiver: Receiver) -> None:
    receiver.answer = lambda call: EMPTY if len(receiver.calls) < 3 else OK
    await world.topic()

    await world.add("1")
    await world.gone("1")

    assert len(receiver.calls) == 3


async def test_twelve_attempts_at_odd_minutes_then_a_dead_letter_and_an_alert(world: World, receiver: Receiver) -> None:
    receiver.answer = lambda call: Says(b"", 502)
    topic = await world.topic(name="Mails", alert=("ops@example.com",), method=Method.POST)
    queue = world.place("mail").queue
    await world.add("1", to="ann's")

    for number in range(1, 12):
        job = await world.waits("1", attempt=number)
        assert 0 <= job.due_at - receiver.calls[-1].at_ms - (2 * number - 1) * 60_000 < 60_000
        assert len(receiver.calls) == 3 * number
        await world.engine.reschedule(queue, ["1"])
        await receiver.got(3 * number + 1)
        assert receiver.calls[-1].fields["exp_notify_nums"] == str(number)
        assert receiver.calls[-1].fields["dq_set_time"] == receiver.calls[0].fields["dq_set_time"]

    job = await world.dead("1")
    assert len(receiver.calls) == 36
    assert (job.attempt, job.reason) == (12, "killed")
    assert job.error == "gave up after 12 attempts: HTTP 502 with an empty answer ''"
    await until(lambda: world.alerts)
    [(kind, subject, text, addresses)] = world.alerts
    assert (kind, subject) == ("callback/default/shop/mail", "a callback of Mails failed for good")
    assert addresses == ("ops@example.com",)
    assert "curl -X POST" in text
    assert "ann%27s" in text

    async def counted() -> bool:
        return await world.totals(topic) == {"written": 1, "notified": 0, "deleted": 0, "failed": 12}

    await until(counted)

    # And it can be sent again: from the first attempt on.
    receiver.answer = lambda call: OK
    await world.engine.respawn(queue, ids=["1"])
    await world.gone("1")
    assert "exp_notify_nums" not in receiver.calls[-1].fields


async def test_the_condition_asks_for_a_retry_under_the_same_cap(world: World, receiver: Receiver) -> None:
    receiver.answer = lambda call: Says(b'{"code": 500, "data": {"status": 1}}')
    await world.topic(retry_if="{res.code} != 200 && {res.data.status} != 2", schedule="1ms", cap=1)

    await world.add("1")
    job = await world.dead("1")

    assert len(receiver.calls) == 2  # one call an attempt: the answers are not empty
    assert "the retry condition holds for HTTP 200" in job.error
    assert [call.fields.get("exp_notify_nums") for call in receiver.calls] == [None, "1"]


async def test_a_topic_may_lift_the_cap_for_its_condition(world: World, receiver: Receiver) -> None:
    receiver.answer = lambda call: Says(b'{"code": 500}' if len(receiver.calls) < 9 else b'{"code": 200}')
    await world.topic(retry_if="{res.code} != 200", schedule="1ms", cap=1, lift_cap=True)

    await world.add("1")
    await world.gone("1")

    assert len(receiver.calls) == 9


@pytest.mark.parametrize("body", [b"code: 500", b'"text"', b"<html>", b"{broken", b"500"])
async def test_text_that_is_not_json_never_asks_for_a_retry(world: World, receiver: Receiver, body: bytes) -> None:
    receiver.answer = lambda call: Says(body)
    await world.topic(retry_if="{res.code} != 200")

    await world.add("1")
    await world.gone("1")

    assert len(receiver.calls) == 1


@pytest.mark.parametrize("status", [404, 500, 302])
async def test_the_status_is_ignored_unless_the_topic_looks_at_it(
    world: World, receiver: Receiver, status: int
) -> None:
    receiver.answer = lambda call: Says(b"whatever", status, {"location": f"{receiver.url}/elsewhere"})
    await world.topic("blind")
    await world.topic("strict", success=Success.BOTH)

    await world.add("1", key="blind")
    await world.gone("1", key="blind")
    await world.add("1", key="strict")
    job = await world.waits("1", key="strict")

    assert job.error.startswith(f"retry 1: HTTP {status}: whatever")
    assert {call.path for call in receiver.calls} == {"/blind", "/strict"}  # no redirect was followed


@pytest.mark.parametrize("status", [404, 500, 302])
async def test_where_the_status_decides_a_body_saves_no_bad_one(world: World, receiver: Receiver, status: int) -> None:
    receiver.answer = lambda call: Says(b'{"code": 200}', status)
    await world.topic(success=Success.STATUS)

    await world.add("1")
    job = await world.waits("1")

    assert job.error.startswith(f"retry 1: HTTP {status}")
    assert len(receiver.calls) == 1  # one attempt is one call


@pytest.mark.parametrize(("status", "body"), [(204, b""), (200, b""), (200, b"0"), (201, b"made")])
async def test_where_the_status_decides_an_empty_answer_is_one(
    world: World, receiver: Receiver, status: int, body: bytes
) -> None:
    receiver.answer = lambda call: Says(body, status)
    await world.topic(success=Success.STATUS, retry_if="{res.code} != 200")

    await world.add("1")
    await world.gone("1")

    assert len(receiver.calls) == 1


async def test_where_the_status_decides_the_condition_and_a_closed_port_still_count(
    world: World, receiver: Receiver
) -> None:
    receiver.answer = lambda call: Says(b'{"code": 500}', 200)
    await world.topic(success=Success.STATUS, retry_if="{res.code} != 200")
    await world.topic("away", callback=f"http://127.0.0.1:{find_free_port()}/", success=Success.STATUS)

    await world.add("1")
    await world.add("1", key="away")

    assert "the retry condition holds" in (await world.waits("1")).error
    assert "no connection" in (await world.waits("1", key="away")).error


async def test_a_halted_topic_refuses_plain_pushes_until_it_is_online(world: World, receiver: Receiver) -> None:
    receiver.answer = lambda call: Says(b"gone", 410)
    await world.topic(success=Success.STATUS)
    queue = world.place("mail").queue
    await world.add("1")

    await until(lambda: _is_offline(world, queue))
    with pytest.raises(TopicOffline):
        await world.engine.push(queue, [NewJob("2", b"{}")])
    receiver.answer = lambda call: Says(b"ok")
    await world.service.set_status(world.place("mail"), Status.ONLINE)
    await world.gone("1")
    await world.engine.push(queue, [NewJob("2", b"{}")])


async def _is_offline(world: World, queue: Queue) -> bool:
    return (await world.engine.store.configure(queue)).offline


async def test_retry_after_is_honoured_where_it_is_longer(world: World, receiver: Receiver) -> None:
    receiver.answer = lambda call: Says(b"busy", 503, {"retry-after": "7200"})
    await world.topic(success=Success.BOTH)

    await world.add("1")
    job = await world.waits("1")

    assert job.due_at >= receiver.calls[0].at_ms + 7_200_000
    await world.add("2")  # nobody calls before that, either
    await asyncio.sleep(0)
    assert len(receiver.calls) == 1


def test_calls_are_what_they_look_like() -> None:
    call = Call("GET", "/x?a=1&b=", {}, b"", 0)

    assert (call.path, call.fields) == ("/x", {"a": "1", "b": ""})


async def test_the_number_of_a_retry_survives_a_crash_and_is_not_made_by_one(world: World, receiver: Receiver) -> None:
    """A lease that lapses costs a try but is no retry: its number stays."""
    receiver.answer = lambda call: EMPTY
    await world.topic(schedule="1h")
    queue = world.place("mail").queue
    await world.add("1")
    await world.waits("1")
    await world.engine.store.configure(queue)
    await world.topics.set_status(world.place("mail"), Status.OFFLINE, halted="by a test")
    await until(lambda: world.lane("mail") is None)

    await world.engine.reschedule(queue, ["1"])
    for _ in range(2):
        [delivery] = await world.engine.reserve([queue], ttr_ms=1, wait_ms=5_000)
        assert retries_of(delivery) == 1
    assert delivery.used == 3
