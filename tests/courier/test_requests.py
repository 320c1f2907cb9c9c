"""What a receiver gets of a topic that the native API, the console or the command line added."""

import pytest
from standardwebhooks import Webhook

from duetime.model.job import NewJob
from duetime.model.topic import Method
from tests.courier.conftest import World
from tests.courier.receiver import EMPTY, OK, Receiver, Says

PHP = {"notify_time", "dq_set_time", "exp_notify_nums"}


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b'{ "to":"ann",  "n": 1e5, "to":"bob" }', "application/json"),
        (b"[1, null]", "application/json"),
        (b'"text"', "application/json"),
        (b"plain text", "text/plain; charset=utf-8"),
        (b"\xff\x00", "application/octet-stream"),
        (b"", "text/plain; charset=utf-8"),
    ],
)
async def test_the_body_is_sent_byte_for_byte(world: World, receiver: Receiver, body: bytes, content_type: str) -> None:
    await world.new_topic()

    await world.service.jobs.add(world.place("mail"), "1", body)
    [call] = await receiver.got(1)

    assert (call.method, call.target, call.body) == ("POST", "/mail", body)
    assert call.headers["content-type"] == content_type


@pytest.mark.parametrize("method", [Method.GET, Method.POST])
async def test_only_the_fields_of_the_body_are_sent(world: World, receiver: Receiver, method: Method) -> None:
    await world.new_topic(method=method)

    await world.add("1", to="ann", n=3)
    [call] = await receiver.got(1)

    assert call.fields == {"to": "ann", "n": "3"}


async def test_headers_carry_id_attempt_and_due_time(world: World, receiver: Receiver) -> None:
    receiver.answer = lambda call: Says(b"no", 500) if len(receiver.calls) < 3 else OK
    await world.new_topic(schedule="1ms")

    await world.add("job/1", to="ann")
    calls = (await receiver.got(3))[:3]
    await world.gone("job/1")

    assert [call.headers["webhook-id"] for call in calls] == ["job/1"] * 3
    assert [call.headers["duetime-attempt"] for call in calls] == ["1", "2", "3"]
    for call in calls:
        assert 0 <= call.at_ms - int(call.headers["duetime-due-at"]) < 60_000
        assert abs(call.at_ms - int(call.headers["webhook-timestamp"]) * 1000) < 60_000
        assert "webhook-signature" not in call.headers
    assert [call.body for call in calls] == [b'{"to":"ann"}'] * 3


@pytest.mark.parametrize(("job_id", "sent"), [("a b", "a%20b"), ("\u00e9", "%C3%A9"), ("a%20b", "a%20b"), (" ", "%20")])
async def test_an_id_that_no_header_can_hold_is_encoded(
    world: World, receiver: Receiver, job_id: str, sent: str
) -> None:
    topic = await world.new_topic(secret="new")

    await world.add(job_id, to="ann")
    [call] = await receiver.got(1)

    assert call.headers["webhook-id"] == sent
    Webhook(topic.secret).verify(call.body, call.headers, json_parse=False)


async def test_a_job_of_plain_bytes_is_signed(world: World, receiver: Receiver) -> None:
    topic = await world.new_topic(secret="new")

    await world.engine.push(world.place("mail").queue, [NewJob("1", b"\xff")])
    [call] = await receiver.got(1)

    assert call.body == b"\xff"
    assert call.headers["webhook-signature"].startswith("v1,")
    assert topic.secret


async def test_a_topic_may_ask_for_php_delayqueues_fields(world: World, receiver: Receiver) -> None:
    receiver.answer = lambda call: EMPTY
    await world.new_topic(php_fields=True, method=Method.POST, schedule="1ms", success="body", cap=1)

    await world.add("1", to="ann")
    await world.dead("1")

    assert receiver.calls[0].fields.keys() == {"to", "notify_time", "dq_set_time"}
    assert receiver.calls[-1].fields.keys() == {"to", *PHP}
    assert receiver.calls[0].headers["webhook-id"] == "1"


@pytest.mark.parametrize("cap", [0, 1, 3])
async def test_a_job_is_tried_once_and_as_often_again_as_the_cap_says(
    world: World, receiver: Receiver, cap: int
) -> None:
    receiver.answer = lambda call: Says(b"no", 500)
    await world.new_topic(schedule="1ms", cap=cap)

    await world.add("1")
    job = await world.dead("1")

    assert len(receiver.calls) == 1 + cap
    assert receiver.calls[-1].headers["duetime-attempt"] == str(1 + cap)
    assert f"gave up after {1 + cap} attempts" in job.error
