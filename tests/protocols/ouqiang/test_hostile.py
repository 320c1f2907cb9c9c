"""Jobs and requests that no honest client sends: one clear answer each, and nothing blocks a topic."""

import logging

import httpx
import pytest

from duetime.model.job import NewJob
from duetime.model.names import Queue
from duetime.protocols.ouqiang import OuqiangApp
from tests.protocols.ouqiang.conftest import NAMESPACE, Caller
from tests.protocols.v1.server import listen

ORDER = Queue(NAMESPACE, "order")
DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("ttr", "lease_ms"),
    [
        ("9" * 4000, DAY_MS),
        ("9" * 20, DAY_MS),
        ("86401", DAY_MS),
        ("0000000000000000000000000000000030", 30_000),
        ("0", 60_000),
        ("-5", 60_000),
        ("1e9", 60_000),
        ("٣", 60_000),
        ("", 60_000),
    ],
)
async def test_an_absurd_ttr_does_not_block_its_topic(caller: Caller, ttr: str, lease_ms: int) -> None:
    await caller.engine.push(ORDER, [NewJob("1", b"odd", attributes={"ttr": ttr}), NewJob("2", b"good")])

    popped = [(await caller.call("/pop", topic="order"))["data"] for _ in range(2)]

    assert popped == [{"id": "1", "body": "odd"}, {"id": "2", "body": "good"}]
    [job] = await caller.engine.store.get(ORDER, ["1"])
    assert job is not None
    assert job.lease_until == caller.clock.now_ms() + lease_ms
    assert (await caller.call("/get", id="1"))["data"]["ttr"] == lease_ms // 1000


async def test_a_pop_names_a_bounded_number_of_topics(caller: Caller) -> None:
    await caller.engine.push(ORDER, [NewJob("1", b"x")])

    refused = await caller.call("/pop", topic=",".join(f"topic-{n}" for n in range(1001)))
    repeated = await caller.call("/pop", topic="order," * 500_000)

    assert (refused["code"], refused["data"]) == (1, None)
    assert "at most 1000 topics" in refused["message"]
    assert (repeated["code"], repeated["data"]) == (1, None)
    assert (await caller.call("/pop", topic=",".join(["order"] * 1000)))["data"]["id"] == "1"


@pytest.mark.parametrize("path", ["/finish", "/delete", "/get"])
@pytest.mark.parametrize("job_id", ["x" * 129, "a\nb", "a\u0000b", "\u200b"])
async def test_an_id_that_no_job_can_have_is_an_unknown_one(caller: Caller, path: str, job_id: str) -> None:
    await caller.push("1")

    answer = await caller.call(path, id=job_id)

    assert (answer["code"], answer["data"]) == (0, None)


@pytest.mark.parametrize("path", ["/push", "/pop", "/finish", "/delete", "/get"])
@pytest.mark.parametrize(
    "body",
    [
        b'{"id": "\xff"}',
        b'{"topic": "\xc3"}',
        b"\xff\xfe",
        b'{"id": "\\ud800"}',
        b"[" * 100_000,
        b'{"x": ' * 100_000,
        b'{"id": ' + b"9" * 10_000 + b"}",
        b'{"delay": 1e999}',
        b'{"delay": NaN}',
        b'{"ttr": -1, "delay": ' + b"9" * 5_000 + b"}",
        b'{"id": "a", "id": ["b"]}',
        b'{"id": null, "topic": null}',
        b"null",
        b"",
    ],
    ids=range(14),
)
async def test_a_body_that_cannot_be_read_is_code_1(
    caller: Caller, caplog: pytest.LogCaptureFixture, path: str, body: bytes
) -> None:
    answer = (await caller.http.post(path, content=body)).json()

    assert answer["code"] == 1
    assert answer["message"] not in ("", "internal error")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("token", ["geheim", "schlüssel", "密钥"])
async def test_a_token_is_its_bytes_in_utf_8(caller: Caller, token: str) -> None:
    app = OuqiangApp(lambda: caller.engine, NAMESPACE, token=token, max_body=1000)
    async with listen(app) as at, httpx.AsyncClient(base_url=at.url) as http:
        named = await http.post("/finish", json={"id": "x"}, headers={"authorization": f"Bearer {token}".encode()})
        asked = await http.post("/finish", json={"id": "x"}, params={"token": token})
        wrong = await http.post("/finish", json={"id": "x"}, headers={"authorization": b"Bearer \xff"})

    assert [reply.json()["code"] for reply in (named, asked, wrong)] == [0, 0, 1]
