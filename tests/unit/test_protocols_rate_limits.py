"""Limits: a fixed window per token and side, one for all processes."""

from collections.abc import AsyncIterator

import pytest

from duetime.engine.registry_copy import RegistryCopy
from duetime.model.clock import ManualClock
from duetime.model.errors import TooManyRequests
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


async def test_the_window_ends_after_its_interval_and_says_when(limits: RateLimits, clock: ManualClock) -> None:
    await limits.add(TOKEN, Limit(read=1, write=-1, interval=10))
    assert await allowed(limits) == 1
    clock.advance("3.5s")
    with pytest.raises(TooManyRequests) as caught:
        await limits.spend(TOKEN, Side.READ)
    assert caught.value.fields["retry_after_s"] == 7
    clock.advance("6.5s")
    assert await allowed(limits) == 1


async def test_a_slot_of_a_window_that_ended_is_worth_nothing(limits: RateLimits, registry: MemoryRegistry) -> None:
    await limits.add(TOKEN, Limit(read=1, interval=10))
    slot = await limits.spend(TOKEN, Side.READ)
    assert slot
    await limits.refund(slot._replace(until=0.0))
    assert await allowed(limits) == 0
    assert list((await registry.counters()).values()) == [2]


async def test_an_absurd_interval_is_cut(limits: RateLimits) -> None:
    await limits.put(TOKEN, Limit(read=1, interval=2**63 - 1))
    assert await allowed(limits) == 1
