"""13. Bulk: element text byte for byte, at most 64, ids in order. Republish: a new id, the old job gone."""

import base64

import pytest

from tests.protocols.lmstfy.client import Lmstfy
from tests.protocols.lmstfy.test_09_tries import die

MIB = 1_048_576
ELEMENTS = [
    b'"text"',
    b"null",
    b"true",
    b"-1.50e+10",
    b'{"b" : 1,\n "a":[ 1 , 2 ]}',
    b"[]",
    b"[[[1]],  2]",
    b'"<&>\\u00e4\\n"',
    b'"\\ud800 half a pair"',
    '"ä😀"'.encode(),
    b"{}",
]


async def test_elements_byte_for_byte(lmstfy: Lmstfy) -> None:
    body = b" [ " + b" ,\n\t".join(ELEMENTS) + b" ]\r\n"
    response = await lmstfy.call("PUT", "q/bulk", body=body, tries=3)
    assert response.status == 201
    ids = response.json()["job_ids"]
    assert response.body.startswith(b'{"job_ids":["')
    assert response.body.endswith(b'"],"msg":"published"}')
    jobs = await lmstfy.consume("q", count=100)
    assert [base64.b64decode(job["data"]) for job in jobs] == ELEMENTS
    assert [job["job_id"] for job in jobs] == ids
    assert {job["remain_tries"] for job in jobs} == {2}


@pytest.mark.parametrize("first", ELEMENTS)
async def test_any_element_may_stand_beside_half_a_surrogate_pair(lmstfy: Lmstfy, first: bytes) -> None:
    body = b"[" + first + b' , "\\uDFFF","\\\\ud800",[ ] ]'
    assert (await lmstfy.call("PUT", "q/bulk", body=body)).status == 201
    jobs = await lmstfy.consume("q", count=100)
    assert [base64.b64decode(job["data"]) for job in jobs] == [first, b'"\\uDFFF"', b'"\\\\ud800"', b"[ ]"]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", "request body should be an array of objects"),
        (b"{}", "request body should be an array of objects"),
        (b'"x"', "request body should be an array of objects"),
        (b"[1,]", "request body should be an array of objects"),
        (b"[1] 2", "request body should be an array of objects"),
        (b"[1", "request body should be an array of objects"),
        (b"[nul]", "request body should be an array of objects"),
        (b"[" * 100_000, "request body should be an array of objects"),
        (b'["\\ud8', "request body should be an array of objects"),
        (b"[]", "no jobs"),
        (b" [ ] ", "no jobs"),
        (b"null", "no jobs"),
        (b"[" + b"1," * 64 + b"1]", "too many jobs"),
    ],
)
async def test_refused(lmstfy: Lmstfy, body: bytes, error: str) -> None:
    response = await lmstfy.call("PUT", "q/bulk", body=body)
    assert (response.status, response.json()) == (400, {"error": error})
    assert await lmstfy.size("q") == 0


async def test_sixty_four_are_taken(lmstfy: Lmstfy) -> None:
    response = await lmstfy.call("PUT", "q/bulk", body=b"[" + b"1," * 63 + b"1]")
    assert len(set(response.json()["job_ids"])) == 64
    assert await lmstfy.size("q") == 64


async def test_one_element_that_is_too_large_refuses_all(lmstfy: Lmstfy) -> None:
    largest = b'"' + b"x" * (MIB - 2) + b'"'
    assert (await lmstfy.call("PUT", "q/bulk", body=b"[1," + largest + b"]")).status == 201
    response = await lmstfy.call("PUT", "q/bulk", body=b"[1,x".replace(b"x", largest[:-1]) + b'x"]')
    assert (response.status, response.body) == (413, b'{"error":"job too large"}')
    assert await lmstfy.size("q") == 2


async def test_republish_gives_a_new_id_and_the_old_job_is_gone(lmstfy: Lmstfy) -> None:
    for state in ("ready", "delayed", "leased", "dead"):
        queue = f"q-{state}"
        if state == "dead":
            [old] = await die(lmstfy, queue)
        else:
            old = await lmstfy.publish(queue, b"old", delay=60 if state == "delayed" else 0, tries=5)
        if state == "leased":
            await lmstfy.consume(queue)
        response = await lmstfy.call("PUT", f"{queue}/job/{old}", body=b"new", tries=3, ttl=10)
        assert response.status == 201
        new = response.json()["job_id"]
        assert response.body == b'{"job_id":"%b","msg":"published"}' % new.encode()
        assert new != old
        assert (await lmstfy.call("GET", f"{queue}/job/{old}")).status == 404
        job = await lmstfy.consume(queue)
        assert (job["job_id"], base64.b64decode(job["data"]), job["remain_tries"], job["ttl"]) == (new, b"new", 2, 10)
        assert await lmstfy.consume(queue) is None
        assert await lmstfy.dead_size(queue) == 0


async def test_republish_of_an_unknown_id_publishes(lmstfy: Lmstfy) -> None:
    for job_id in ("unknown", "%00", "x" * 200):
        assert (await lmstfy.call("PUT", f"q/job/{job_id}", body=b"new")).status == 201
    assert await lmstfy.size("q") == 3


async def test_republish_validates_first_so_that_a_refusal_keeps_the_old_job(lmstfy: Lmstfy) -> None:
    old = await lmstfy.publish("q", b"old")
    for query, body in [({"delay": "x"}, b""), ({"tries": 0}, b""), ({}, b"x" * (MIB + 1))]:
        assert (await lmstfy.call("PUT", f"q/job/{old}", body=body, **query)).status in (400, 413)
    assert await lmstfy.take("q") == b"old"
