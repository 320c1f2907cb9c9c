"""queues: every queue that was pushed to or configured and not purged since."""

from duetime.errors import DuetimeError
from duetime.job import State
from duetime.names import Queue
from duetime.stores.base import Push, RulesChange, Store
from tests.contract.vocabulary import OTHER, QUEUE, ack_one, cancel_one, given_leased, job, push_one


async def test_an_empty_store_has_none(store: Store) -> None:
    assert list(await store.queues()) == []
    assert list(await store.queues("shop")) == []


async def test_they_come_sorted_and_by_namespace(store: Store) -> None:
    queues = [Queue("b", "x"), Queue("a", "z"), Queue("a", "a"), Queue("A", "z"), Queue("a", "z.1"), Queue("a.b", "c")]
    for queue in queues:
        await push_one(store, "a", queue=queue)

    assert list(await store.queues()) == sorted(queues)
    assert list(await store.queues("a")) == [Queue("a", "a"), Queue("a", "z"), Queue("a", "z.1")]
    assert list(await store.queues("none")) == []


async def test_a_queue_stays_when_its_jobs_are_gone(store: Store) -> None:
    await ack_one(store, await given_leased(store, "a"))
    await push_one(store, "b", queue=OTHER)
    await cancel_one(store, "b", OTHER)

    assert list(await store.queues()) == [QUEUE, OTHER]


async def test_a_configured_queue_is_there_without_jobs(store: Store) -> None:
    await store.configure(QUEUE, RulesChange(strict=True))

    assert list(await store.queues()) == [QUEUE]


async def test_asking_for_rules_makes_no_queue(store: Store) -> None:
    await store.configure(QUEUE)

    assert list(await store.queues()) == []


async def test_a_refused_push_makes_no_queue(store: Store) -> None:
    [answer] = await store.push(QUEUE, [Push([job("a", delay="2s", ttl="1s")])])

    assert isinstance(answer, DuetimeError)
    assert list(await store.queues()) == []


async def test_a_purged_queue_is_gone_until_it_is_used_again(store: Store) -> None:
    await push_one(store, "a")
    await store.purge(QUEUE, list(State))
    assert list(await store.queues()) == []

    await push_one(store, "a")
    assert list(await store.queues()) == [QUEUE]


async def test_many_queues(store: Store) -> None:
    queues = [Queue(f"ns{n % 3}", f"q{n:03}") for n in range(150)]
    for queue in queues:
        await push_one(store, "a", queue=queue)

    assert list(await store.queues()) == sorted(queues)
    assert list(await store.queues("ns1")) == sorted(queue for queue in queues if queue.namespace == "ns1")
