"""12. Attributes: only with the switch, in lower case, cut, at most sixteen; null if none."""

from tests.protocols.lmstfy.client import Lmstfy
from tests.protocols.lmstfy.wire import Headers

ON = ("Enable-Job-Version", "YES")


async def attributes(lmstfy: Lmstfy, headers: Headers) -> object:
    pairs = [("X-Token", lmstfy.token), *headers]
    response = await lmstfy.api.request("PUT", f"/api/{lmstfy.namespace}/q", body=b"x", headers=pairs)
    assert response.status == 201, response
    job_id = response.json()["job_id"]
    peeked = (await lmstfy.call("GET", "q/peek")).json()["attributes"]
    by_id = (await lmstfy.call("GET", f"q/job/{job_id}")).json()["attributes"]
    delivered = (await lmstfy.consume("q"))["attributes"]
    assert peeked == by_id == delivered
    return delivered


async def test_only_with_the_switch(lmstfy: Lmstfy) -> None:
    assert await attributes(lmstfy, []) is None
    assert await attributes(lmstfy, [ON]) is None
    assert await attributes(lmstfy, [("Job-Attr-Flag", "1")]) is None
    assert await attributes(lmstfy, [("Enable-Job-Version", "NO"), ("Job-Attr-Flag", "1")]) is None
    assert await attributes(lmstfy, [ON, ("Job-Attr-Flag", "1")]) == {"flag": "1"}


async def test_keys_are_in_lower_case(lmstfy: Lmstfy) -> None:
    sent = [ON, ("JOB-ATTR-LOUD", "A"), ("job-attr-soft", "b"), ("Job-Attr-Two-Words", "Ü <&>")]
    assert await attributes(lmstfy, sent) == {"loud": "A", "soft": "b", "two-words": "Ü <&>"}


async def test_cuts(lmstfy: Lmstfy) -> None:
    sent = [ON, (f"Job-Attr-{'K' * 33}", "v" * 129), (f"Job-Attr-{'L' * 32}", "ü" * 65)]
    assert await attributes(lmstfy, sent) == {"k" * 32: "v" * 128, "l" * 32: "ü" * 64}


async def test_the_first_of_a_repeated_header_counts_and_empty_ones_do_not(lmstfy: Lmstfy) -> None:
    sent = [ON, ("Job-Attr-A", "1"), ("Job-Attr-A", "2"), ("Job-Attr-B", ""), ("Job-Attr-B", "3"), ("Job-Attr-C", "4")]
    assert await attributes(lmstfy, sent) == {"a": "1", "c": "4"}


async def test_at_most_sixteen(lmstfy: Lmstfy) -> None:
    sixteen = [ON, *((f"Job-Attr-{number}", "x") for number in range(16)), ("Job-Attr-Empty", "")]
    found = await attributes(lmstfy, sixteen)
    assert isinstance(found, dict)
    assert len(found) == 16
    for path, body in (("q", b"x"), ("q/bulk", b"[1]"), ("q/job/x", b"x")):
        response = await lmstfy.call("PUT", path, body=body, headers=dict([*sixteen, ("Job-Attr-More", "x")]))
        assert (response.status, response.json()) == (400, {"error": "too many attributes, cannot exceed 16"})
    assert await lmstfy.size("q") == 0


async def test_they_apply_to_every_job_of_a_bulk_and_survive_a_lapse(lmstfy: Lmstfy) -> None:
    await lmstfy.call("PUT", "q/bulk", body=b"[1,2]", headers=dict([ON, ("Job-Attr-A", "1")]), tries=2)
    jobs = await lmstfy.consume("q", count=5, ttr=0)
    again = await lmstfy.consume("q", timeout=5)
    assert [job["attributes"] for job in [*jobs, again]] == [{"a": "1"}] * 3
