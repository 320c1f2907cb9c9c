"""Calls that name nothing: each verb answers nothing for it, moves nothing and creates no queue."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from duetime.model.job import State
from duetime.stores.base import Push, Pushed, Store
from tests.contract.vocabulary import NOW, OTHER, QUEUE, counts, given_leased, push_one

Call = Callable[[Store], Awaitable[Any]]

EMPTY: dict[str, Call] = {
    "push": lambda store: store.push(QUEUE, []),
    "ack": lambda store: store.ack(QUEUE, []),
    "give_back": lambda store: store.give_back(QUEUE, []),
    "cancel": lambda store: store.cancel(QUEUE, []),
    "reschedule": lambda store: store.reschedule(QUEUE, [], due_at=NOW),
    "heads": lambda store: store.heads([]),
    "get": lambda store: store.get(QUEUE, []),
    "counts": lambda store: store.counts([]),
    "due_histogram": lambda store: store.due_histogram(QUEUE, []),
    "due_histogram of one edge": lambda store: store.due_histogram(QUEUE, [NOW]),
    "finish": lambda store: store.finish(QUEUE, []),
    "results": lambda store: store.results(QUEUE, []),
    "respawn": lambda store: store.respawn(QUEUE, ids=[]),
}


@pytest.mark.store_only
@pytest.mark.parametrize("held", [True, False], ids=["a leased job", "no queue"])
async def test_an_empty_list_is_answered_with_one(store: Store, held: bool) -> None:
    if held:
        await given_leased(store, "a")
        await push_one(store, "b", delay="1h")
    before = await counts(store)

    for verb, call in EMPTY.items():
        assert list(await call(store)) == [], verb
        assert await counts(store) == before, verb
        assert list(await store.queues()) == ([QUEUE] if held else []), verb


@pytest.mark.store_only
async def test_a_reserve_without_asks(store: Store) -> None:
    await push_one(store, "a")
    reserved = await store.reserve(QUEUE, [])
    assert (list(reserved.deliveries), reserved.next_at) == ([], NOW)
    assert list((await store.reserve(OTHER, [])).deliveries) == []


@pytest.mark.store_only
async def test_a_push_of_no_jobs(store: Store) -> None:
    [answer] = await store.push(QUEUE, [Push([])])
    assert isinstance(answer, Pushed)
    assert list(answer.jobs) == []


@pytest.mark.store_only
async def test_a_purge_of_no_states(store: Store) -> None:
    await push_one(store, "a")
    assert (await store.purge(QUEUE, [])).removed == 0
    assert (await store.purge(QUEUE, [State.READY], limit=0)).removed == 0
    assert (await counts(store)).ready == 1
