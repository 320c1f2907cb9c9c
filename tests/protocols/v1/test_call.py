"""The synchronous model in one request."""

import asyncio

import httpx

from duetime.engine import Engine
from duetime.model.job import NewJob, State
from duetime.model.names import Queue
from tests.protocols.v1.vocabulary import forgotten, ok, problem, push, reserve

SUM = "/v1/queues/shop/sum"


async def answer_one(engine: Engine, body: bytes) -> str:
    """A worker: take a job, answer it on the queue of its name, finish it."""
    [delivery] = await engine.reserve([Queue("shop", "sum")], wait_ms=10_000)
    job_id = delivery.lease.id
    await engine.push(Queue("shop", job_id), [NewJob("answer", body, attributes={"by": "worker"})])
    await engine.ack([delivery.lease])
    return job_id


async def test_a_call_answers_what_the_worker_answered(http: httpx.AsyncClient, engine: Engine) -> None:
    worker = asyncio.create_task(answer_one(engine, b"42"))

    answer = await ok(await http.post(f"{SUM}/call?wait=10s", json={"body": [40, 2]}))

    assert answer == {"id": await worker, "answer_id": "answer", "body": "42", "attributes": {"by": "worker"}}
    await forgotten(engine.store)


async def test_an_answer_that_is_not_text(http: httpx.AsyncClient, engine: Engine) -> None:
    worker = asyncio.create_task(answer_one(engine, b"\xff"))

    answer = await ok(await http.post(f"{SUM}/call", json={"id": "x"}))

    assert answer["body_b64"] == "/w=="
    await worker


async def test_a_call_without_an_answer_leaves_the_job(http: httpx.AsyncClient, engine: Engine) -> None:
    reply = await http.post(f"{SUM}/call?wait=10ms", json={"id": "x"})

    assert problem(reply, 504, "no_answer")["fields"] == {"id": "x"}
    [job] = await engine.store.get(Queue("shop", "sum"), ["x"])
    assert job is not None
    assert job.state is State.READY


async def test_calling_again_finds_the_answer_that_came_late(http: httpx.AsyncClient, engine: Engine) -> None:
    problem(await http.post(f"{SUM}/call?wait=0", json={"id": "x"}), 504, "no_answer")
    await answer_one(engine, b"late")

    again = await ok(await http.post(f"{SUM}/call?wait=10s", json={"id": "x"}))

    assert again["body"] == "late"


async def test_a_queue_that_somebody_else_uses_is_not_purged(http: httpx.AsyncClient) -> None:
    await push(http, "a", queue="/v1/queues/shop/mail")
    await push(http, "b", queue="/v1/queues/shop/mail")

    await ok(await http.post(f"{SUM}/call?wait=0", json={"id": "mail"}))

    [left] = await reserve(http, queue="/v1/queues/shop/mail")
    assert left["lease"]["id"] == "b"


async def test_the_id_of_a_call_names_a_queue(http: httpx.AsyncClient, engine: Engine) -> None:
    assert problem(await http.post(f"{SUM}/call", json={"id": "a/b"}), 400, "invalid_name")
    assert problem(await http.post(f"{SUM}/call", json={"id": "sum"}), 400, "invalid_request")
    assert await engine.store.queues() == []


async def test_a_call_waits_for_a_bounded_time(http: httpx.AsyncClient) -> None:
    assert problem(await http.post(f"{SUM}/call?wait=61m", json={}), 400, "invalid_time")
    assert problem(await http.post(f"{SUM}/call?wait=soon", json={}), 400, "invalid_time")


async def test_the_next_call_under_the_same_id_is_a_new_one(http: httpx.AsyncClient, engine: Engine) -> None:
    for body in (b"first", b"second"):
        worker = asyncio.create_task(answer_one(engine, body))
        answer = await ok(await http.post(f"{SUM}/call?wait=10s", json={"id": "x"}))
        assert answer["body"] == body.decode()
        await worker
