"""11. The id's layout, both versions; elapsed_ms comes from it."""

import struct
import time

from duetime.model import ids
from tests.protocols.lmstfy.client import Lmstfy
from tests.protocols.lmstfy.server import Server

VERSION_1 = {"Enable-Job-Version": "yes"}


def parts(job_id: str) -> tuple[int, int, int]:
    """Milliseconds, chance, delay in seconds."""
    raw = ids.decode(job_id).to_bytes(16, "big")
    return int.from_bytes(raw[:6], "big"), int.from_bytes(raw[6:12], "big"), struct.unpack("<I", raw[12:])[0]


async def test_version_0(lmstfy: Lmstfy) -> None:
    seen: set[int] = set()
    for delay in (0, 1, 60, 86_400, 2**32 - 1):
        before = time.time_ns() // 1_000_000
        job_id = await lmstfy.publish("q", delay=delay, ttl=0)
        assert len(job_id) == 26
        made_ms, chance, in_id = parts(job_id)
        assert before <= made_ms <= time.time_ns() // 1_000_000
        assert in_id == delay
        seen.add(chance)
    assert len(seen) == 5


async def test_version_1(lmstfy: Lmstfy) -> None:
    for value in ("YES", "yes", "Yes"):
        response = await lmstfy.call("PUT", "q", headers={"Enable-Job-Version": value}, delay=7)
        job_id = response.json()["job_id"]
        assert len(job_id) == 27
        assert job_id[0] == "1"
        assert parts(job_id[1:])[2] == 7
    for value in ("", "NO", "1", "true"):
        response = await lmstfy.call("PUT", "q", headers={"Enable-Job-Version": value})
        assert len(response.json()["job_id"]) == 26


async def test_bulk_and_republish_make_such_ids(lmstfy: Lmstfy) -> None:
    plain = (await lmstfy.call("PUT", "q/bulk", body=b"[1,2]", delay=9)).json()["job_ids"]
    marked = (await lmstfy.call("PUT", "q/bulk", body=b"[1,2]", delay=9, headers=VERSION_1)).json()["job_ids"]
    again = (await lmstfy.call("PUT", f"q/job/{plain[0]}", delay=3)).json()["job_id"]
    assert [parts(job_id)[2] for job_id in [*plain, *(job_id[1:] for job_id in marked), again]] == [9, 9, 9, 9, 3]


async def test_elapsed_ms_is_the_age_of_the_id(lmstfy: Lmstfy) -> None:
    for headers in ({}, VERSION_1):
        job_id = (await lmstfy.call("PUT", "q", headers=headers)).json()["job_id"]
        made_ms = parts(job_id[-26:])[0]
        for path in (f"q/job/{job_id}", "q/peek", "q"):
            before = time.time_ns() // 1_000_000
            job = (await lmstfy.call("GET", path)).json()
            after = time.time_ns() // 1_000_000
            assert before - made_ms <= job["elapsed_ms"] <= after - made_ms


async def test_an_id_of_another_protocol_has_no_age_and_unlimited_tries_show_as_many(
    lmstfy: Lmstfy, server: Server
) -> None:
    # The native API and lmstfy's share the queues of a namespace.
    await server.push(lmstfy.namespace, "q", "order<42>", tries=0)
    peeked = (await lmstfy.call("GET", "q/peek")).json()
    job = await lmstfy.consume("q")
    assert (peeked["job_id"], peeked["elapsed_ms"], peeked["remain_tries"]) == ("order<42>", 0, 65_535)
    assert (job["job_id"], job["elapsed_ms"], job["remain_tries"]) == ("order<42>", 0, 65_535)
    assert rb"order\u003c42\u003e" in (await lmstfy.call("GET", "q/job/order%3C42%3E")).body
    assert (await lmstfy.ack("q", "order%3C42%3E")).status == 204
    assert (await lmstfy.call("GET", "q/job/order%3C42%3E")).status == 404
