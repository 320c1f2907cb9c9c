"""15. The remaining ttl is rounded up: a fresh one reads as it was given; 0 is for ever."""

import pytest

from tests.protocols.lmstfy.client import Lmstfy


@pytest.mark.parametrize(("ttl", "shown"), [(10, 10), (1, 1), (86_400, 86_400), (2**32 - 1, 2**32 - 1), (0, 0)])
async def test_a_fresh_ttl_reads_as_given(lmstfy: Lmstfy, ttl: int, shown: int) -> None:
    published = await lmstfy.publish("q", ttl=ttl)
    assert (await lmstfy.call("GET", "q/peek")).json()["ttl"] == shown
    assert (await lmstfy.call("GET", f"q/job/{published}")).json()["ttl"] == shown
    republished = (await lmstfy.call("PUT", f"q/job/{published}", ttl=ttl)).json()["job_id"]
    assert (await lmstfy.call("GET", f"q/job/{republished}")).json()["ttl"] == shown
    assert (await lmstfy.consume("q"))["ttl"] == shown


async def test_it_goes_down(lmstfy: Lmstfy) -> None:
    await lmstfy.publish("q", ttl=10, delay=1)
    job = await lmstfy.consume("q", timeout=5)
    assert 0 < job["ttl"] <= 9
