"""19. A dead job that was deleted answers 404 to a peek by id."""

from tests.protocols.lmstfy.client import Lmstfy
from tests.protocols.lmstfy.test_09_tries import die


async def test_deleted_from_the_dead_letter_or_by_id(lmstfy: Lmstfy) -> None:
    ids = await die(lmstfy, "q", 2)
    assert (await lmstfy.call("GET", f"q/job/{ids[0]}")).status == 200
    await lmstfy.call("DELETE", "q/deadletter", limit=1)
    await lmstfy.ack("q", ids[1])
    for job_id in ids:
        response = await lmstfy.call("GET", f"q/job/{job_id}")
        assert (response.status, response.body) == (404, b'{"error":"job not found"}')
    assert await lmstfy.dead_size("q") == 0
    assert (await lmstfy.call("PUT", "q/deadletter")).json()["count"] == 0
