"""Push, reserve and ack on the fast path answer as the application does, and not where that would refuse."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.plugins.until import until
from tests.protocols.lmstfy.client import Lmstfy
from tests.protocols.lmstfy.server import Server
from tests.protocols.lmstfy.wire import Response, read_response

QUEUE = "/v1/queues/shop/mail"


class Api:
    """A client of the native API that counts its requests on the fast path."""

    def __init__(self, server: Server, token: str) -> None:
        self.server = server
        self.token = token
        self.was_fast = False

    async def post(self, path: str, message: Any, *, queue: str = QUEUE, **headers: str) -> Response:
        """`was_fast` says afterwards whether the request took the fast path."""
        before = self.server.fast_requests
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        given = {"Authorization": f"Bearer {self.token}", **headers}
        response = await self.server.api.request("POST", f"{queue}/{path}", body=body, headers=given)
        self.was_fast = self.server.fast_requests > before
        return response


@pytest.fixture
def server() -> Iterator[Server]:
    with Server({"default": "memory:"}) as started:
        yield started


@pytest.fixture
async def api(server: Server) -> Api:
    admin = await Lmstfy.enter(server.api, server.admin, "shop")
    return Api(server, admin.token)


def plain(response: Response) -> tuple[int, list[str], str]:
    """A response without what differs from request to request."""
    return response.status, sorted(response.headers), response.headers["content-type"]


async def test_a_second_request_takes_it_and_is_answered_alike(api: Api) -> None:
    answers: dict[str, list[Response]] = {"jobs": [], "reserve": [], "ack": [], "empty": []}
    for is_second in (False, True):
        answers["jobs"].append(await api.post("jobs", {"body": {"n": 1}, "tries": 3}))
        assert api.was_fast == is_second
        answers["reserve"].append(await api.post("reserve", {"ttr": "1m"}))
        assert api.was_fast == is_second
        [delivery] = answers["reserve"][-1].json()["deliveries"]
        assert (delivery["body"], delivery["tries"], delivery["used"]) == ({"n": 1}, 3, 1)
        answers["ack"].append(await api.post("ack", {"lease": delivery["lease"]}))
        assert api.was_fast == is_second
        answers["empty"].append(await api.post("reserve", b""))
        assert api.was_fast
    for first, second in answers.values():
        assert plain(first) == plain(second)
    assert [answer.status for answer in answers["jobs"]] == [201, 201]
    assert answers["jobs"][1].json()["moved"].keys() == answers["jobs"][0].json()["moved"].keys()
    assert [answer.json() for answer in answers["empty"]] == [{"deliveries": []}] * 2


async def test_errors_are_answered_alike(api: Api) -> None:
    lost = {"lease": {"id": "a", "born": 1, "attempt": 1}}
    for path, message in [
        ("jobs", {"id": "a", "if_exists": "error"}),
        ("jobs", {"delay": 1, "due_at": 1_900_000_000_000}),
        ("jobs", {"delay": "soon"}),
        ("jobs", b"{"),
        ("jobs", {"unknown": 1}),
        ("reserve", {"wait": "2h"}),
        ("reserve", {"limit": 0}),
        ("ack", lost),
        ("ack", {}),
    ]:
        await api.post("jobs", {"id": "a"}, queue="/v1/queues/shop/other")
        await api.post("jobs", {"id": "a"})
        refused = await api.post(path, message)
        await api.post("reserve", {})
        await api.post("ack", {"leases": []})
        again = await api.post(path, message)
        assert refused.status >= 400
        assert plain(again) == plain(refused)
        assert again.json() == refused.json()


async def test_a_kept_job_is_200(api: Api) -> None:
    statuses = [(await api.post("jobs", {"id": "same"})).status for _ in range(3)]
    assert statuses == [201, 200, 200]
    assert api.was_fast


async def test_several_leases_have_their_own_results(api: Api) -> None:
    for _ in range(4):
        await api.post("jobs", {})
    for _ in range(2):
        leases = [one["lease"] for one in (await api.post("reserve", {"limit": 2})).json()["deliveries"]]
        stale = {**leases[0], "attempt": 9}
        results = (await api.post("ack", {"leases": [*leases, stale]})).json()["results"]
        assert [sorted(one) for one in results][:2] == [["moved"], ["moved"]]
    assert api.was_fast


async def test_a_revoked_token_is_refused(api: Api) -> None:
    for _ in range(2):
        await api.post("jobs", {})
    assert api.was_fast
    assert (await api.server.admin.request("DELETE", f"/token/shop/{api.token}")).status == 204
    assert (await api.post("jobs", {})).status == 401


async def test_a_limit_holds_from_its_beginning(api: Api) -> None:
    for _ in range(2):
        await api.post("jobs", {})
    limit = json.dumps({"write": 1, "interval": 600}).encode()
    await api.server.admin.request("POST", f"/token/shop/{api.token}/limit", body=limit)
    assert [(await api.post("jobs", {})).status for _ in range(3)] == [201, 429, 429]
    assert not api.was_fast


async def test_another_token_another_queue_and_a_key_are_admitted_anew(api: Api) -> None:
    for _ in range(2):
        await api.post("jobs", {})
    assert (await Api(api.server, "no-such-token").post("jobs", {})).status == 401
    assert (await api.post("jobs", {}, queue="/v1/queues/other/mail")).status == 401
    first, second = [await api.post("jobs", {}, **{"Idempotency-Key": "k"}) for _ in range(2)]
    assert not api.was_fast
    assert (first.status, second.headers["idempotent-replayed"]) == (201, "true")


async def test_a_token_that_may_only_read_never_pushes(api: Api) -> None:
    query = {"description": "d", "scopes": "read"}
    made = await api.server.admin.request("POST", "/token/shop", query=query)
    reader = Api(api.server, made.json()["token"])
    for _ in range(3):
        assert (await reader.post("jobs", {})).status == 403
        assert not reader.was_fast
        assert (await reader.post("reserve", {})).status == 200
    assert reader.was_fast


async def test_a_reserve_that_finds_nothing_waits(api: Api) -> None:
    await api.post("reserve", {})
    poll = asyncio.create_task(api.post("reserve", {"wait": "60s"}))

    async def is_parked() -> bool:
        return await api.server.parked() == 1

    await until(is_parked)
    pushed = await api.post("jobs", {"body": "hello"})
    [delivery] = (await poll).json()["deliveries"]
    assert (delivery["lease"]["id"], delivery["body"]) == (pushed.json()["moved"]["id"], "hello")
    assert (await api.post("reserve", {"wait": "10ms"})).json() == {"deliveries": []}
    assert api.was_fast


async def test_a_client_that_disconnects_while_it_waits_takes_no_job(api: Api) -> None:
    await api.post("reserve", {})
    poll = asyncio.create_task(api.post("reserve", {"wait": "60s"}))

    async def is_parked() -> bool:
        return await api.server.parked() == 1

    async def is_free() -> bool:
        return await api.server.parked() == 0

    await until(is_parked)
    poll.cancel()
    await until(is_free)
    await api.post("jobs", {})
    assert len((await api.post("reserve", {})).json()["deliveries"]) == 1


async def test_a_body_in_a_packet_of_its_own_takes_it(api: Api) -> None:
    await api.post("jobs", {})
    before = api.server.fast_requests
    lines = [
        f"POST {QUEUE}/jobs HTTP/1.1",
        "Host: localhost",
        f"Authorization: Bearer {api.token}",
        "Content-Length: 13",
        "",
        "",
    ]
    head = "\r\n".join(lines)
    async with api.server.api.connect() as (reader, writer):
        for _ in range(2):
            for part in (head.encode(), b'{"body":', b'"hi"}'):
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0.05)
            assert (await read_response(reader, "POST")).status == 201
    assert api.server.fast_requests == before + 2
    async with api.server.api.connect() as (_, writer):
        writer.write(head.encode() + b'{"body":')
        await writer.drain()
    assert (await api.post("jobs", {})).status == 201


async def test_the_access_log_sees_every_request(api: Api) -> None:
    for _ in range(2):
        await api.post("jobs", {})
    assert api.was_fast
    await api.server.admin.request("POST", "/accesslog", query={"status": "enable"})
    await api.post("jobs", {})
    assert not api.was_fast


async def test_pages_of_other_sites_are_refused_with_the_same_head() -> None:
    with Server({"default": "memory:"}, dev=True) as server:
        api = Api(server, "")
        for _ in range(2):
            assert (await api.post("jobs", {})).status == 201
        assert api.was_fast
        for header, value in [
            ("Origin", "https://elsewhere.example"),
            ("Sec-Fetch-Site", "cross-site"),
            ("X-Forwarded-For", "192.0.2.1"),
            ("Via", "1.1 proxy"),
        ]:
            assert (await api.post("jobs", {}, **{header: value})).status == 403
            assert not api.was_fast
        raw = b"POST /v1/queues/shop/mail/jobs HTTP/1.1\r\nHost: elsewhere.example\r\nContent-Length: 2\r\n\r\n{}"
        async with server.api.connect() as (reader, writer):
            writer.write(raw)
            assert b" 403 " in await reader.readline()
