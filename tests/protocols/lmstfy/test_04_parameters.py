"""4. Parameters: defaults, ranges, the order of checks, the texts."""

import asyncio

import pytest

from tests.protocols.lmstfy.client import Lmstfy

U16, U32, I64 = 2**16 - 1, 2**32 - 1, 2**63 - 1
NOT_NUMBERS = ["", "-1", "+1", " 1", "1 ", "1.0", "1e3", "0x10", "1_000", "x", "٣", "²", "9" * 5000]


async def error_of(lmstfy: Lmstfy, method: str, path: str, **query: object) -> str:
    response = await lmstfy.call(method, path, **query)
    assert response.status == 400, response
    return str(response.json()["error"])


@pytest.mark.parametrize("text", NOT_NUMBERS)
async def test_numbers_are_strictly_unsigned_decimals(lmstfy: Lmstfy, text: str) -> None:
    for method, path, names in [
        ("PUT", "q", ["delay", "ttl", "tries"]),
        ("PUT", "q/bulk", ["delay", "ttl", "tries"]),
        ("PUT", "q/job/x", ["delay", "ttl", "tries"]),
        ("GET", "q", ["ttr", "timeout", "count"]),
        ("PUT", "q/deadletter", ["limit", "ttl"]),
        ("DELETE", "q/deadletter", ["limit"]),
    ]:
        for name in names:
            assert await error_of(lmstfy, method, path, **{name: text}) == f"invalid {name}"


@pytest.mark.parametrize(
    ("method", "path", "name", "largest"),
    [
        ("PUT", "q", "delay", U32),
        ("PUT", "q", "ttl", U32),
        ("PUT", "q", "tries", U16),
        ("GET", "empty", "ttr", U32),
        ("GET", "empty", "count", 100),
        ("PUT", "q/deadletter", "limit", I64),
        ("PUT", "q/deadletter", "ttl", I64),
        ("DELETE", "q/deadletter", "limit", I64),
    ],
)
async def test_ranges(lmstfy: Lmstfy, method: str, path: str, name: str, largest: int) -> None:
    more = {"ttl": 0} if name == "delay" else {}
    for number in (largest, f"{largest:030}"):
        response = await lmstfy.call(method, path, **{name: number}, **more)
        assert response.status in (200, 201, 204, 404), response
    assert await error_of(lmstfy, method, path, **{name: largest + 1}, **more) == f"invalid {name}"


async def test_the_largest_timeout_waits(lmstfy: Lmstfy) -> None:
    poll = asyncio.create_task(lmstfy.consume("q", timeout=U32))
    await lmstfy.publish("q")
    assert (await poll)["queue"] == "q"
    assert await error_of(lmstfy, "GET", "q", timeout=U32 + 1) == "invalid timeout"


async def test_order_of_checks_of_publish(lmstfy: Lmstfy) -> None:
    wrong: dict[str, object] = {"delay": "x", "ttl": "x", "tries": "x"}
    for path in ("q", "q/bulk", "q/job/x"):
        assert await error_of(lmstfy, "PUT", path, **wrong) == "invalid delay"
        assert await error_of(lmstfy, "PUT", path, **wrong | {"delay": 5}) == "invalid ttl"
        assert await error_of(lmstfy, "PUT", path, **wrong | {"delay": 5, "ttl": 4}) == "ttl is shorter than delay"
        assert await error_of(lmstfy, "PUT", path, **wrong | {"delay": 5, "ttl": 5}) == "invalid tries"
        assert await error_of(lmstfy, "PUT", path, **wrong | {"delay": 5, "ttl": 0}) == "invalid tries"
        zero = await error_of(lmstfy, "PUT", path, delay=5, ttl=5, tries=0)
        assert zero == "tries shouldn't be zero"
    assert await lmstfy.size("q") == 0
    assert (await lmstfy.call("PUT", "q", delay=5, ttl=5)).status == 201


async def test_the_body_is_checked_after_the_numbers_and_before_the_attributes(lmstfy: Lmstfy) -> None:
    too_large = b"x" * (1_048_576 + 1)
    attributes = {"Enable-Job-Version": "YES", **{f"Job-Attr-{number}": "x" for number in range(17)}}
    responses = [
        await lmstfy.call("PUT", "q", body=too_large, headers=attributes, tries=0),
        await lmstfy.call("PUT", "q", body=too_large, headers=attributes),
        await lmstfy.call("PUT", "q", body=b"x", headers=attributes),
    ]
    assert [response.json()["error"] for response in responses] == [
        "tries shouldn't be zero",
        "body too large",
        "too many attributes, cannot exceed 16",
    ]


async def test_order_of_checks_of_consume(lmstfy: Lmstfy) -> None:
    wrong: dict[str, object] = {"ttr": "x", "timeout": "x", "count": "x"}
    assert await error_of(lmstfy, "GET", ",,", **wrong) == "invalid ttr"
    assert await error_of(lmstfy, "GET", ",,", **wrong | {"ttr": 1}) == "invalid timeout"
    assert await error_of(lmstfy, "GET", ",,", **wrong | {"ttr": 1, "timeout": 1}) == "invalid count"
    assert await error_of(lmstfy, "GET", ",,", ttr=1, timeout=1, count=0) == "invalid count"
    assert await error_of(lmstfy, "GET", ",,", ttr=1, timeout=1, count=1) == "invalid queue name(s)"


async def test_order_of_checks_of_respawn(lmstfy: Lmstfy) -> None:
    assert await error_of(lmstfy, "PUT", "q/deadletter", limit=0, ttl="x") == "invalid limit"
    assert await error_of(lmstfy, "PUT", "q/deadletter", limit=1, ttl="x") == "invalid ttl"
    assert await error_of(lmstfy, "DELETE", "q/deadletter", limit=0) == "invalid limit"


async def test_defaults(lmstfy: Lmstfy) -> None:
    await lmstfy.publish("q")
    job = await lmstfy.consume("q")
    # What is left of a day: a slow machine may take seconds from the push to the delivery.
    assert 86_400 - 120 < job["ttl"] <= 86_400
    assert job["remain_tries"] == 0
    assert await lmstfy.consume("q") is None, "leased for two minutes"


async def test_the_first_of_a_repeated_parameter_counts(lmstfy: Lmstfy) -> None:
    path = f"/api/{lmstfy.namespace}/q"
    headers = {"X-Token": lmstfy.token}
    assert (await lmstfy.api.request("PUT", path, headers=headers, query="tries=3&tries=x")).status == 201
    assert (await lmstfy.api.request("PUT", path, headers=headers, query="tries=x&tries=3")).status == 400
    assert (await lmstfy.api.request("PUT", path, headers=headers, query="tries")).status == 400
    assert (await lmstfy.api.request("PUT", path, headers=headers, query="&&t%72ies=%34&")).status == 201
    assert [job["remain_tries"] for job in await lmstfy.consume("q", count=9)] == [2, 3]


async def test_freeze_tries_is_accepted(lmstfy: Lmstfy) -> None:
    await lmstfy.publish("q", tries=2)
    assert await lmstfy.consume("q", freeze_tries="true")
