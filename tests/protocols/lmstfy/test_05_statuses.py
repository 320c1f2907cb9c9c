"""5. Statuses; `msg` and not `error` where there is no job, and where a limit is reached."""

import pytest

from tests.protocols.lmstfy.client import Lmstfy

ANSWERS = [
    ("GET", "q", 404, b'{"msg":"no job available"}'),
    ("GET", "a,b", 404, b'{"msg":"no job available"}'),
    ("GET", "q/peek", 404, b'{"error":"the queue is empty"}'),
    ("GET", "q/job/x", 404, b'{"error":"job not found"}'),
    ("GET", "q/job/%00%FF", 404, b'{"error":"job not found"}'),
    ("GET", "q/job/" + "x" * 200, 404, b'{"error":"job not found"}'),
    ("DELETE", "q/job/x", 204, b""),
    ("DELETE", "q/job/%00%FF", 204, b""),
    ("DELETE", "q/job/" + "x" * 200, 204, b""),
    ("DELETE", "q", 204, b""),
    ("DELETE", "q/deadletter", 204, b""),
    ("PUT", "q/deadletter", 200, b'{"count":0,"msg":"respawned"}'),
    ("PUT", "q/bulk", 400, b'{"error":"request body should be an array of objects"}'),
]


@pytest.mark.parametrize(("method", "path", "status", "body"), ANSWERS)
async def test_answers_of_an_empty_queue(lmstfy: Lmstfy, method: str, path: str, status: int, body: bytes) -> None:
    response = await lmstfy.call(method, path)
    assert (response.status, response.body) == (status, body)
    if status != 204:
        assert response.headers["content-type"] == "application/json; charset=utf-8"


async def test_answers_of_an_empty_queue_about_its_size(lmstfy: Lmstfy) -> None:
    expected = {"namespace": lmstfy.namespace, "queue": "q"}
    assert (await lmstfy.call("GET", "q/size")).json() == {**expected, "size": 0}
    assert (await lmstfy.call("GET", "q/deadletter/size")).json() == {**expected, "size": 0}
    dead = {**expected, "deadletter_head": "", "deadletter_size": 0}
    assert (await lmstfy.call("GET", "q/deadletter")).json() == dead


async def test_an_empty_batch_is_no_job_too(lmstfy: Lmstfy) -> None:
    response = await lmstfy.call("GET", "q", count=5)
    assert (response.status, response.body) == (404, b'{"msg":"no job available"}')


async def test_published(lmstfy: Lmstfy) -> None:
    response = await lmstfy.call("PUT", "q", body=b"x")
    assert response.status == 201
    job_id = response.json()["job_id"]
    assert response.body == b'{"job_id":"%b","msg":"published"}' % job_id.encode()
