"""check and ping: the store proves itself sound, and says which one it is."""

import pytest

from duetime.model.clock import ManualClock
from duetime.model.job import State
from duetime.stores.base import Store
from duetime.stores.open import open_store
from tests.contract.conftest import SHARED_KINDS
from tests.contract.vocabulary import (
    HIGH,
    LOW,
    NOW,
    OTHER,
    QUEUE,
    counts,
    given_dead,
    given_expired,
    given_leased,
    job,
    mark,
    pause,
    push,
    push_one,
)


async def test_an_empty_store_is_sound(store: Store) -> None:
    assert list(await store.check()) == []


async def test_a_store_with_everything_in_it_is_sound(store: Store, clock: ManualClock) -> None:
    await given_expired(store, clock, "expired")
    await given_dead(store, "dead", error="it failed", attributes={"trace": "1"})
    await given_leased(store, "leased", ttr="1s", ttl="1h")
    await push(store, job("high", priority=HIGH), job("low", priority=LOW, delay="1h", ttl="2h"), mark=mark())
    await push_one(store, "other", queue=OTHER)
    await pause(store, OTHER)
    await store.registry.put("token", "a", b"1")
    clock.advance("1m")

    before = await counts(store)
    assert list(await store.check()) == []
    assert await counts(store) == before


async def test_a_purged_store_is_sound(store: Store) -> None:
    await push(store, job("a", ttl="1h"), job("b", delay="1h"))
    await store.purge(QUEUE, list(State))

    assert list(await store.check()) == []


@pytest.mark.store_only
async def test_ping_returns_the_kind_and_the_time(store: Store, store_kind: str, clock: ManualClock) -> None:
    first = await store.ping()
    clock.advance("1s")
    second = await store.ping()

    assert (first.kind, first.now, second.now) == (store_kind, NOW, NOW + 1000)
    assert first.version
    assert first.epoch
    assert first.epoch == second.epoch


@pytest.mark.parametrize("store_kind", SHARED_KINDS, indirect=True)
async def test_an_epoch_belongs_to_the_data(store: Store, store_url: str, clock: ManualClock) -> None:
    neighbour = await open_store(store_url, clock=clock)

    assert (await neighbour.ping()).epoch == (await store.ping()).epoch

    await neighbour.close()


async def test_closing_twice_is_no_error(store_url: str, clock: ManualClock) -> None:
    opened = await open_store(store_url, clock=clock)

    await opened.close()
    await opened.close()


@pytest.mark.parametrize("store_kind", SHARED_KINDS, indirect=True)
async def test_jobs_survive_closing_and_opening(store_url: str, clock: ManualClock) -> None:
    first = await open_store(store_url, clock=clock)
    await push_one(first, "a", b"body", delay="1h", ttl="2h", attributes={"trace": "1"})
    [before] = await first.get(QUEUE, ["a"])
    epoch = (await first.ping()).epoch
    await first.close()

    second = await open_store(store_url, clock=clock)

    assert list(await second.get(QUEUE, ["a"])) == [before]
    assert (await second.ping()).epoch == epoch
    assert list(await second.check()) == []
    await second.close()
