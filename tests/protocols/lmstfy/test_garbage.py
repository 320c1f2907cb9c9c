"""Random garbage in path, query, headers and body, from a fixed seed: no 5xx, no hang, and what is refused changes
nothing.
"""

import asyncio
import json
import random
from collections import Counter
from enum import Enum
from urllib.parse import quote

import pytest

from tests.protocols.lmstfy.client import Lmstfy
from tests.protocols.lmstfy.server import Server
from tests.protocols.lmstfy.test_09_tries import die
from tests.protocols.lmstfy.wire import Response, read_response

SEED = 20_261_115
CONNECTIONS = 8
DEADLINE_S = 60

METHODS = ["GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS", "PROPFIND"]
TAILS = ["", "/bulk", "/peek", "/size", "/deadletter", "/deadletter/size", "/job/", "/job/x", "/job/x/y", "/", "//"]
NAMES = ["ns", "q", "_q", "a,b", ",", "", ".", "..", "%2e%2e", "%00", "%ff", "%", "%zz", "x" * 300, "ä", "😀", "a b"]
NUMBERS = [
    "", "0", "00", "1", "-1", "+1", " 1", "1.5", "x", "²", "4294967296", "9" * 50, "NaN", "0x1", "1e9", "%00", "%",
]  # fmt: skip
PARAMETERS = [
    "delay", "ttl", "tries", "ttr", "count", "limit", "freeze_tries", "token", "", "&", "=", ";", "%", "délay",
]  # fmt: skip
BODIES = [
    b"", b"[]", b"null", b"[1,2]", b"[", b"{}", b'["\\ud800"]', b"[" * 2000, b"\xff\xfe", b"[" + b"1," * 70 + b"1]",
]  # fmt: skip
HEADERS = ["X-Token", "Enable-Job-Version", "Job-Attr-", "Job-Attr-A", "Content-Type", "Expect", "Connection", "Range"]
VALUES = [
    "", "YES", "yes", "x", "x" * 300, "ä", "a:b:c", ":", "nowhere:x", "second:", "100-continue",
    "multipart/form-data",
]  # fmt: skip


class Aim(Enum):
    """Where a request goes to."""

    COUNTED = "the queue fuzz, with the token: what is accepted is counted"
    NOISE = "the queue noise, with the token, by any route"
    REFUSED = "anywhere, without the token: nothing may be accepted"


class Garbage:
    """Draws requests."""

    def __init__(self, lmstfy: Lmstfy, chance: random.Random) -> None:
        self._lmstfy = lmstfy
        self._chance = chance

    def draw(self) -> tuple[bytes, Aim]:
        pick, kind = self._chance.choice, self._chance.random()
        if kind < 0.02:
            return self._chance.randbytes(self._chance.randrange(1, 200)) + b"\r\n\r\n", Aim.REFUSED
        space, token = f"/api/{self._lmstfy.namespace}/", self._lmstfy.token
        if kind < 0.4:
            tail = pick(["", "", "/bulk", "/job/x", "/job/%00"])
            return self._request("PUT", f"{space}fuzz{tail}", token=token), Aim.COUNTED
        if kind < 0.6:
            return self._request(pick(METHODS), f"{space}noise{pick(TAILS)}", token=token), Aim.NOISE
        return self._request(pick(METHODS), self._path(), token=None), Aim.REFUSED

    def _path(self) -> str:
        pick = self._chance.choice
        if self._chance.random() < 0.1:
            return "/" + quote(self._chance.randbytes(self._chance.randrange(30)))
        namespace = pick([self._lmstfy.namespace, pick(NAMES)])
        queue = pick(["keep", pick(NAMES)])
        return pick(["/api/", "/api/", "/api/", "/", "//", "/token/"]) + f"{namespace}/{queue}{pick(TAILS)}"

    def _request(self, method: str, path: str, *, token: str | None) -> bytes:
        pick = self._chance.choice
        query = "&".join(f"{pick(PARAMETERS)}={pick(NUMBERS)}" for _ in range(self._chance.randrange(4)))
        lines = [f"{method} {path}{'?' + query if query else ''} HTTP/1.1", "Host: localhost"]
        if token is not None:
            lines.append(f"X-Token: {token}")
        lines += [f"{pick(HEADERS[1 if token else 0 :])}: {pick(VALUES)}" for _ in range(self._chance.randrange(4))]
        body = pick([pick(BODIES), self._chance.randbytes(self._chance.randrange(100))])
        lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join([*lines, "", ""]).encode() + body


class Tally:
    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self.accepted = 0
        self.strangers_accepted: list[bytes] = []


async def send_all(lmstfy: Lmstfy, garbage: Garbage, requests: int, tally: Tally) -> None:
    reader, writer = await asyncio.open_connection(lmstfy.api.host, lmstfy.api.port)
    for _ in range(requests):
        request, aim = garbage.draw()
        if writer.is_closing() or reader.at_eof():
            writer.close()
            reader, writer = await asyncio.open_connection(lmstfy.api.host, lmstfy.api.port)
        try:
            async with asyncio.timeout(DEADLINE_S):
                writer.write(request)
                response = await read_response(reader, request.split(b" ", 1)[0].decode("latin-1"))
        except (asyncio.IncompleteReadError, ConnectionError):
            # Not HTTP at all: to hang up is an answer, too. A request on a connection that was being closed is none.
            writer.close()
            continue
        count(tally, request, response, aim)
        if response.headers.get("connection", "").lower() == "close":
            writer.close()
    writer.close()


def count(tally: Tally, request: bytes, response: Response, aim: Aim) -> None:
    tally.statuses[response.status] += 1
    assert response.status < 500, (request, response)
    if response.status == 201 and aim is Aim.COUNTED:
        made = response.json()
        tally.accepted += len(made["job_ids"]) if "job_ids" in made else 1
    elif response.status == 201 and aim is Aim.REFUSED:
        tally.strangers_accepted.append(request)


@pytest.mark.timeout(900)
async def test_garbage(lmstfy: Lmstfy, server: Server, scale: int) -> None:
    requests = 3_000 if scale == 1 else 10_000 * scale
    await die(lmstfy, "keep")
    await lmstfy.publish("keep")
    await lmstfy.consume("keep")
    for delay in (0, 0, 3600):
        await lmstfy.publish("keep", delay=delay)
    before = await server.counts(lmstfy.namespace)
    tally = Tally()
    async with asyncio.TaskGroup() as group:
        for number in range(CONNECTIONS):
            garbage = Garbage(lmstfy, random.Random(SEED + number))
            group.create_task(send_all(lmstfy, garbage, requests // CONNECTIONS, tally))
    after = await server.counts(lmstfy.namespace)
    print(json.dumps(dict(sorted(tally.statuses.items()))))
    assert tally.strangers_accepted == []
    assert set(tally.statuses) >= {201, 400, 401, 404}
    fuzzed = after.pop("fuzz")
    assert fuzzed.total + fuzzed.expired == tally.accepted, "a ttl of 1 s may be over by now"
    after.pop("noise", None)
    assert after == before, "nothing but what was accepted"
    assert sum(tally.statuses.values()) > requests * 0.9
    assert await lmstfy.take("keep") == b"x"
