"""The fast path of publish, consume and ack answers as the application does, and not where that would refuse."""

import asyncio
import base64
import json

from duetime.protocols.fast_path import KNOWN_HEADS
from tests.plugins.until import until
from tests.protocols.lmstfy.client import Lmstfy
from tests.protocols.lmstfy.server import Server
from tests.protocols.lmstfy.wire import read_response, request_bytes


def plain(response) -> tuple[int, list[str], bytes]:
    """A response without what differs from request to request."""
    return response.status, sorted(set(response.headers) - {"date"}), response.headers.get("content-type", "").encode()


async def on_fast_path(server: Server, work) -> int:
    """How many of the requests in `work` took the fast path."""
    before = server.fast_requests
    await work
    return server.fast_requests - before


async def test_a_second_equal_request_takes_it_and_is_answered_alike(lmstfy: Lmstfy, server: Server) -> None:
    answers: dict[str, list] = {"PUT": [], "GET": [], "DELETE": []}

    async def one_round() -> None:
        answers["PUT"].append(await lmstfy.call("PUT", "q", body=b"\0<&>", delay=0, tries=3))
        answers["GET"].append(await lmstfy.call("GET", "q", ttr=60))
        answers["DELETE"].append(await lmstfy.ack("q", answers["GET"][-1].json()["job_id"]))
        answers["GET"].append(await lmstfy.call("GET", "q", ttr=60))

    assert await on_fast_path(server, one_round()) == 1, "the poll of the empty queue came second"
    assert await on_fast_path(server, one_round()) == 4
    assert [plain(one) for one in answers["PUT"]] == [plain(answers["PUT"][0])] * 2
    assert [plain(one) for one in answers["DELETE"]] == [plain(answers["DELETE"][0])] * 2
    taken, empty, *again = answers["GET"]
    assert [plain(one) for one in again] == [plain(taken), plain(empty)]
    first, second = taken.json(), again[0].json()
    assert base64.b64decode(second["data"]) == b"\0<&>"
    changing = {"job_id", "elapsed_ms"}
    assert {k: v for k, v in first.items() if k not in changing} == {
        k: v for k, v in second.items() if k not in changing
    }
    assert len({answer.headers["x-request-id"] for some in answers.values() for answer in some}) == 8


async def test_another_query_is_another_line(lmstfy: Lmstfy, server: Server) -> None:
    await lmstfy.publish("q", delay=0)
    assert await on_fast_path(server, lmstfy.publish("q", delay=3600)) == 0
    assert (await lmstfy.call("PUT", "q", body=b"x", delay="soon")).status == 400
    assert (await lmstfy.call("PUT", "q", body=b"x", delay="soon")).status == 400


async def test_a_revoked_token_is_refused_at_once(lmstfy: Lmstfy, server: Server) -> None:
    for _ in range(2):
        await lmstfy.publish("q")
    removed = await lmstfy.admin.request("DELETE", f"/token/{lmstfy.namespace}/{lmstfy.token}")
    assert removed.status == 204
    assert (await lmstfy.call("PUT", "q", body=b"x")).status == 401


async def test_a_limit_holds_from_its_beginning(lmstfy: Lmstfy, server: Server) -> None:
    for _ in range(2):
        await lmstfy.publish("q")
    limit = json.dumps({"write": 1, "interval": 600}).encode()
    await lmstfy.admin.request("POST", f"/token/{lmstfy.namespace}/{lmstfy.token}/limit", body=limit)
    answers = [(await lmstfy.call("PUT", "q", body=b"x")).status for _ in range(3)]
    assert answers == [201, 429, 429]


async def test_unusual_requests_go_to_the_application(lmstfy: Lmstfy, server: Server) -> None:
    for _ in range(2):
        await lmstfy.publish("q")
    versioned = {"Enable-Job-Version": "YES", "Job-Attr-a": "1"}
    assert await on_fast_path(server, lmstfy.call("PUT", "q", body=b"x", headers=versioned)) == 0
    large = await lmstfy.call("PUT", "q", body=b"x" * (server.parts.settings.max_body + 1))
    assert (large.status, large.json()) == (413, {"error": "body too large"})
    assert (await lmstfy.call("DELETE", "q/job/no-such%20id")).status == 204


async def test_a_poll_that_finds_nothing_waits(lmstfy: Lmstfy, server: Server) -> None:
    for _ in range(2):
        await lmstfy.publish("q")
        await lmstfy.consume("q", timeout=60, ttr=60)
    before = await server.parked()
    poll = asyncio.create_task(lmstfy.consume("q", timeout=60, ttr=60))

    async def is_parked() -> bool:
        return await server.parked() == before + 1

    await until(is_parked)
    job_id = await lmstfy.publish("q")
    assert (await poll)["job_id"] == job_id


async def test_requests_that_a_client_sends_ahead_are_answered_in_order(lmstfy: Lmstfy, server: Server) -> None:
    path, headers = f"/api/{lmstfy.namespace}/ahead", {"X-Token": lmstfy.token}
    await lmstfy.publish("ahead")
    count = 300
    async with lmstfy.api.connect() as (reader, writer):
        writer.write(b"".join(request_bytes("PUT", path, body=b"%d" % at, headers=headers) for at in range(count)))
        ids = [(await read_response(reader, "PUT")).json()["job_id"] for _ in range(count)]
    assert ids == sorted(ids)
    assert await lmstfy.size("ahead") == count + 1


class GoneClient:
    """A request, as the listener offers it, whose client disconnects before its answer is ready."""

    def __init__(self, lmstfy: Lmstfy, queue: str) -> None:
        self.task, self.method, self.url = None, b"GET", f"/api/{lmstfy.namespace}/{queue}?ttr=600".encode()
        self.headers = [(b"x-token", lmstfy.token.encode())]
        self.received, self.gone, self.request_id = 0, True, "r"
        self.answered: list[int] = []

    def body(self) -> bytes:
        return b""

    def done(self) -> bool:
        return False

    def set_result(self, result: object) -> None:
        self.operation.respond(self, result)

    def finish(self, status: int, headers: object, body: bytes) -> bool:
        self.answered.append(status)
        return False

    def start(self) -> None:
        raise AssertionError("nobody waits for an answer")


async def test_a_job_whose_client_has_gone_is_given_back(lmstfy: Lmstfy, server: Server) -> None:
    assert (await lmstfy.call("GET", "q", ttr=600)).status == 404
    job_id = await lmstfy.publish("q", tries=1)
    gone = GoneClient(lmstfy, "q")
    assert await server.accept(gone)
    job = await lmstfy.consume("q", timeout=60, ttr=600)
    assert (job["job_id"], job["remain_tries"]) == (job_id, 0)
    assert gone.answered == [200]


async def test_what_is_remembered_is_bounded(lmstfy: Lmstfy, server: Server) -> None:
    for at in range(KNOWN_HEADS + 10):
        assert (await lmstfy.call("GET", "q", unknown=at)).status == 404
    assert 0 < len(server.fast_path._known) <= KNOWN_HEADS
    long = {"unknown": "x" * 2000}
    await lmstfy.call("GET", "q", **long)
    assert await on_fast_path(server, lmstfy.call("GET", "q", **long)) == 0
