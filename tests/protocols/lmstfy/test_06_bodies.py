"""6. Raw bytes in, base64 out; never a form; the size is enforced while reading."""

import asyncio
import base64
import random

import pytest

from tests.protocols.lmstfy.client import Lmstfy
from tests.protocols.lmstfy.wire import read_response, request_bytes

MIB = 1_048_576
CONTENT_TYPES = ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/json", "x"]


@pytest.mark.parametrize("body", [b"", b"\0", b"a=b&c=d", bytes(range(256)), "ä€😀".encode(), b"[1]", b"\n\n"])
async def test_bytes_come_back_as_base64(lmstfy: Lmstfy, body: bytes) -> None:
    for content_type in CONTENT_TYPES:
        await lmstfy.call("PUT", "q", body=body, headers={"Content-Type": content_type})
        assert (await lmstfy.call("GET", "q/peek")).json()["data"] == base64.b64encode(body).decode()
        job = await lmstfy.consume("q")
        assert job["data"] == base64.b64encode(body).decode()
        assert (await lmstfy.call("GET", f"q/job/{job['job_id']}")).json()["data"] == job["data"]


async def test_the_largest_body(lmstfy: Lmstfy) -> None:
    body = random.Random(1).randbytes(MIB)
    await lmstfy.publish("q", body)
    assert await lmstfy.take("q") == body


async def test_one_byte_more_is_refused_and_leaves_nothing(lmstfy: Lmstfy) -> None:
    response = await lmstfy.call("PUT", "q", body=b"x" * (MIB + 1))
    assert (response.status, response.body) == (413, b'{"error":"body too large"}')
    assert await lmstfy.size("q") == 0


async def test_an_announced_size_is_refused_before_the_body_is_sent(lmstfy: Lmstfy) -> None:
    head = request_bytes("PUT", f"/api/{lmstfy.namespace}/q", headers={"X-Token": lmstfy.token})
    async with lmstfy.api.connect() as (reader, writer):
        writer.write(head.replace(b"Content-Length: 0", b"Content-Length: 10000000000"))
        assert (await read_response(reader)).status == 413


async def test_an_endless_body_is_refused_when_the_limit_is_passed(lmstfy: Lmstfy) -> None:
    head = request_bytes("PUT", f"/api/{lmstfy.namespace}/q", headers={"X-Token": lmstfy.token})
    async with lmstfy.api.connect() as (reader, writer):
        writer.write(head.replace(b"Content-Length: 0", b"Transfer-Encoding: chunked"))
        for _ in range(17):
            writer.write(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
        response = await asyncio.wait_for(read_response(reader), 10)
        assert (response.status, response.json()) == (413, {"error": "body too large"})
    assert await lmstfy.size("q") == 0


async def test_a_chunked_body(lmstfy: Lmstfy) -> None:
    head = request_bytes("PUT", f"/api/{lmstfy.namespace}/q", headers={"X-Token": lmstfy.token})
    async with lmstfy.api.connect() as (reader, writer):
        writer.write(head.replace(b"Content-Length: 0", b"Transfer-Encoding: chunked"))
        for piece in (b"one ", b"two ", b"three"):
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        assert (await read_response(reader)).status == 201
    assert await lmstfy.take("q") == b"one two three"


async def test_a_body_that_is_cut_off_publishes_nothing(lmstfy: Lmstfy) -> None:
    request = request_bytes("PUT", f"/api/{lmstfy.namespace}/q", body=b"whole", headers={"X-Token": lmstfy.token})
    async with lmstfy.api.connect() as (_, writer):
        writer.write(request[:-2])
        await writer.drain()
    marker = await lmstfy.publish("q", b"next")
    assert (await lmstfy.consume("q"))["job_id"] == marker
    assert await lmstfy.consume("q", timeout=0) is None


async def test_a_body_on_a_consume_is_ignored(lmstfy: Lmstfy) -> None:
    await lmstfy.publish("q", b"x")
    response = await lmstfy.call("GET", "q", body=b"something")
    assert response.status == 200


async def test_many_requests_on_one_connection(lmstfy: Lmstfy) -> None:
    path, headers = f"/api/{lmstfy.namespace}/q", {"X-Token": lmstfy.token}
    async with lmstfy.api.connect() as (reader, writer):
        for number in range(20):
            writer.write(request_bytes("PUT", path, body=b"%d" % number, headers=headers))
            assert (await read_response(reader)).status == 201
            writer.write(request_bytes("GET", path, headers=headers))
            job = (await read_response(reader)).json()
            assert base64.b64decode(job["data"]) == b"%d" % number
            writer.write(request_bytes("DELETE", f"{path}/job/{job['job_id']}", headers=headers))
            assert (await read_response(reader)).status == 204
