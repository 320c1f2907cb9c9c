"""Limits: a fixed window per token and side, one for all processes."""

from collections.abc import AsyncIterator

import pytest

from duetime.engine.registry_copy import RegistryCopy
from duetime.model.clock import ManualClock
from duetime.model.errors import TooManyRequests, VersionConflict
from duetime.protocols.rate_limits import Limit, RateLimits, Side
from duetime.protocols.tokens import Token
from duetime.stores.memory.registry import MemoryRegistry

TOKEN, OTHER = Token("default", "ns", "a" * 64), Token("default", "ns", "b" * 64)


@pytest.fixture
def registry(clock: ManualClock) -> MemoryRegistry:
    return MemoryRegistry(clock)


@pytest.fixture
async def limits(registry: MemoryRegistry) -> AsyncIterator[RateLimits]:
    async with RegistryCopy(lambda: registry) as registry_copy:
        yield RateLimits(registry_copy, lambda: registry)


async def allowed(limits: RateLimits, token: Token = TOKEN, side: Side = Side.READ, *, most: int = 10) -> int:
    for number in range(most):
        try:
            await limits.spend(token, side)
        except TooManyRequests:
            return number
    return most


async def test_without_a_limit_everything_goes(limits: RateLimits) -> None:
    assert await limits.spend(TOKEN, Side.READ) is None
    assert await limits.get(TOKEN) is None


async def test_each_side_and_each_token_has_its_own(limits: RateLimits) -> None:
    await limits.add(TOKEN, Limit(read=2, write=3, interval=10))
    await limits.add(OTHER, Limit(read=5, write=0, interval=10))
    assert await allowed(limits) == 2
    assert await allowed(limits, side=Side.WRITE) == 3
    assert await allowed(limits, OTHER) == 5
    assert await allowed(limits, OTHER, Side.WRITE) == 10, "none and less is unlimited"


async def test_the_window_ends_after_its_interval_and_says_when(limits: RateLimits, clock: ManualClock) -> None:
    await limits.add(TOKEN, Limit(read=1, write=-1, interval=10))
    assert await allowed(limits) == 1
    clock.advance("3.5s")
    with pytest.raises(TooManyRequests) as caught:
        await limits.spend(TOKEN, Side.READ)
    assert caught.value.fields["retry_after_s"] == 7
    clock.advance("6.5s")
    assert await allowed(limits) == 1


async def test_a_slot_given_back_can_be_used_again(limits: RateLimits) -> None:
    await limits.add(TOKEN, Limit(read=1, interval=10))
    for _ in range(3):
        slot = await limits.spend(TOKEN, Side.READ)
        assert slot
        await limits.refund(slot)
    assert await allowed(limits) == 1


async def test_a_slot_of_a_window_that_ended_is_worth_nothing(limits: RateLimits, registry: MemoryRegistry) -> None:
    await limits.add(TOKEN, Limit(read=1, interval=10))
    slot = await limits.spend(TOKEN, Side.READ)
    assert slot
    await limits.refund(slot._replace(until=0.0))
    assert await allowed(limits) == 0
    assert list((await registry.counters()).values()) == [2]


async def test_administration(limits: RateLimits) -> None:
    await limits.add(TOKEN, Limit(read=1, interval=10))
    with pytest.raises(VersionConflict):
        await limits.add(TOKEN, Limit(read=2, interval=10))
    await limits.put(TOKEN, Limit(read=3, interval=10))
    await limits.put(OTHER, Limit(write=4, interval=5))
    assert await limits.get(TOKEN) == Limit(read=3, interval=10)
    assert [(token.label, limit.write) for token, limit in await limits.list_limits(refresh=True)] == [
        ("aaaaaaaa", 0),
        ("bbbbbbbb", 4),
    ]
    await limits.delete(TOKEN)
    await limits.delete(TOKEN)
    assert await limits.get(TOKEN) is None
    assert await allowed(limits) == 10


async def test_an_absurd_interval_is_cut(limits: RateLimits) -> None:
    await limits.put(TOKEN, Limit(read=1, interval=2**63 - 1))
    assert await allowed(limits) == 1


async def test_all_processes_share_one_window(limits: RateLimits, registry: MemoryRegistry) -> None:
    async with RegistryCopy(lambda: registry) as registry_copy:
        elsewhere = RateLimits(registry_copy, lambda: registry)
        await limits.put(TOKEN, Limit(read=4, interval=10))
        await elsewhere.get(TOKEN)
        for one in (limits, elsewhere, limits, elsewhere):
            await one.spend(TOKEN, Side.READ)
        assert await allowed(limits) == await allowed(elsewhere) == 0
