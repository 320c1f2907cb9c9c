"""Topics as records: their checks, their keeper, their counts and what heirs make of those."""

import inspect
from unittest import mock

import pytest
from msgspec import structs

from duetime.callbacks.orphaned_counts import MERGE_AFTER_S, SETTLE_AFTER_S, Heirs
from duetime.callbacks.topic_counts import KIND, Acked, Count, Tally, add_up
from duetime.callbacks.topic_registry import OVERLAP_MS, TopicPlace, TopicRegistry, secrets_of
from duetime.callbacks.topic_service import TopicService, pool_counts, pool_keys, stat_keys
from duetime.client import topics as client_topics
from duetime.clock import ManualClock
from duetime.engine import Engine
from duetime.engine.registry_copy import RegistryCopy
from duetime.errors import InvalidCondition, InvalidRequest, StoreUnavailable, TopicExists, TopicNotFound
from duetime.job import Lease, NewJob
from duetime.names import Queue
from duetime.stores.memory.store import MemoryStore
from duetime.topic import Status, Topic, check_topic

PLACE = TopicPlace("default", Queue("shop", "mail"))
URL = "https://shop.example.com/mail"
DAY = "20261115"


def a_topic(**fields: object) -> Topic:
    return structs.replace(Topic(key="mail", callback=URL), **fields)


def test_the_defaults_are_php_delayqueues() -> None:
    topic = a_topic()

    assert (topic.delay_ms, topic.method, topic.timeout_ms, topic.retry_if) == (0, "GET", 3000, "")
    assert (topic.priority, topic.status, topic.cap, topic.schedule) == (2, "online", 10, "odd-minutes")
    assert (topic.success, topic.lift_cap, topic.secret, topic.verify_tls) == ("body", False, "", True)


@pytest.mark.parametrize(
    "fields",
    [
        {"callback": "ftp://example.com"},
        {"callback": "http://"},
        {"callback": "http://user:pw@example.com/"},
        {"callback": "http://example.com/#x"},
        {"callback": "http://example.com/a b"},
        {"callback": "http://example.com:99999/"},
        {"callback": "http://[::1/"},
        {"callback": "http://ex.com/" + "a" * 3000},
        {"schedule": "sometimes"},
        {"timeout_ms": 0},
        {"cap": -1},
        {"in_flight": 0},
        {"rate": -1},
        {"delay_ms": -1},
        {"alert": ("",)},
        {"alert": ("json://127.0.0.1/",)},
        {"alert": ("a@b.example?smtp=x",)},
        {"alert": ("a@b.example%0aBcc",)},
        {"alert": ("a@b.example\n",)},
        {"name": "x" * 300},
    ],
)
def test_what_a_topic_cannot_be(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_topic(a_topic(**fields))

    assert refused.value.fields["path"] == "$." + next(iter(fields)).removesuffix("_ms")


def test_a_condition_is_checked_when_it_is_saved() -> None:
    with pytest.raises(InvalidCondition):
        check_topic(a_topic(retry_if="{res.code} ="))


async def test_topics_are_added_changed_and_removed() -> None:
    store = MemoryStore()
    topics = TopicRegistry(lambda: store.registry)

    added = await topics.add(PLACE, a_topic())
    assert (added.id, await topics.get(PLACE)) == (1, added)
    with pytest.raises(TopicExists):
        await topics.add(PLACE, a_topic())
    assert (await topics.edit(PLACE, {"delay_ms": 5})).delay_ms == 5
    with pytest.raises(InvalidCondition):
        await topics.edit(PLACE, {"retry_if": "("})
    assert (await topics.set_status(PLACE, Status.OFFLINE)).status is Status.OFFLINE
    assert [topic.key for topic in await topics.list_topics("default", "shop")] == ["mail"]
    assert await topics.list_topics("default", "sho") == []
    await topics.remove(PLACE)
    with pytest.raises(TopicNotFound):
        await topics.get(PLACE)
    assert (await topics.add(PLACE, a_topic())).id == 2


async def test_a_change_by_another_process_is_seen_at_once() -> None:
    store = MemoryStore()
    ours = TopicRegistry(lambda: store.registry)
    async with RegistryCopy(lambda: store.registry) as mirror:
        followed = TopicRegistry(lambda: store.registry, mirror)
        with pytest.raises(TopicNotFound):
            await followed.find(PLACE)
        await ours.add(PLACE, a_topic())
        assert (await followed.find(PLACE)).callback == URL
        version = await mirror.changed(0)
        await ours.edit(PLACE, {"name": "Mails"})
        await mirror.changed(version)
        assert (await followed.find(PLACE)).name == "Mails"


async def test_a_secret_is_drawn_changed_over_and_ended() -> None:
    store, clock = MemoryStore(), ManualClock()
    topics = TopicRegistry(lambda: store.registry, clock=clock)

    first = (await topics.add(PLACE, a_topic(secret="new"))).secret
    assert first.startswith("whsec_")
    changed = await topics.edit(PLACE, {"secret": "new"})
    assert changed.secret != first
    assert secrets_of(changed, clock.now_ms()) == (changed.secret, first)
    assert secrets_of(changed, clock.now_ms() + OVERLAP_MS) == (changed.secret,)
    assert secrets_of(await topics.edit(PLACE, {"secret": ""}), clock.now_ms()) == ()
    for wrong in ("whsec_xyz", "whsec_" + "A" * 8):
        with pytest.raises(InvalidRequest):
            await topics.edit(PLACE, {"secret": wrong})


async def test_secrets_are_shown_once() -> None:
    store = MemoryStore()
    async with Engine(store) as engine:
        service = TopicService.of_engine(engine)
        added = await service.add(PLACE, a_topic(secret="new"))

        assert added.secret.startswith("whsec_")
        assert (await service.get(PLACE)).secret == ""
        assert (await service.get(PLACE)).signed is True
        assert (await service.edit(PLACE, {"delay_ms": 1})).secret == ""
        assert (await service.list_topics("default", "shop"))[0].secret == ""


# --- counts


class Broken:
    """A registry that cannot be reached."""

    async def put(self, *_: object, **__: object) -> None:
        raise StoreUnavailable


def make_tally(store: MemoryStore, node: str = "a") -> Tally:
    return Tally(lambda: store.registry, node, lambda: DAY)


async def totals(store: MemoryStore) -> dict[str, int]:
    counts = add_up(await store.registry.list_records(KIND))
    return counts[1].totals if counts else {}


async def test_counts_are_kept_by_topic_and_day_over_all_processes() -> None:
    store = MemoryStore()
    async with make_tally(store, "a") as one, make_tally(store, "b") as other:
        one.count(1, PLACE, Count.WRITTEN, 3)
        other.count(1, PLACE, Count.WRITTEN, 2)
        other.count(1, PLACE, Count.FAILED)
        one.count(2, PLACE, Count.DELETED)
    async with make_tally(store, "c") as later:
        later.count(1, PLACE, Count.WRITTEN)

    counts = await make_tally(store).read()

    assert counts[1].totals == {"written": 6, "failed": 1}
    assert counts[1].days == {DAY: {"written": 6, "failed": 1}}
    assert pool_counts(counts)["default"].totals == {"written": 6, "failed": 1, "deleted": 1}
    assert stat_keys(1, counts[1]) == {
        "1:total_write": 6,
        "1:total_notfiy": 0,
        "1:total_del": 0,
        f"1:tw:{DAY}": 6,
        f"1:te:{DAY}": 1,
    }
    assert pool_keys("default", pool_counts(counts)["default"]) == {
        "redis:default:dq_write_total_nums": 6,
        "redis:default:dq_notify_total_nums": 0,
        "redis:default:dq_del_total_nums": 1,
    }


async def leased(engine: Engine, count: int) -> list[Lease]:
    await engine.push(PLACE.queue, [NewJob(f"j{n}", b"{}") for n in range(count)])
    return [delivery.lease for delivery in await engine.reserve([PLACE.queue], limit=count, ttr_ms=60_000)]


async def test_what_a_killed_process_acked_is_counted_by_its_heirs() -> None:
    """Killed between the ack and the next write: three acked, one not, one still held."""
    clock = ManualClock()
    store = MemoryStore(clock)
    async with Engine(store) as engine:
        leases = await leased(engine, 5)
        dead = make_tally(store, "dead")

        async def ack() -> Acked:
            answers = await engine.ack(leases[:3])
            await engine.release(leases[3])
            return [*answers, None, None]

        await dead.finish(1, PLACE, leases, ack)
        for flush in dead._flushes.values():
            flush.cancel()
        assert await totals(store) == {}

        heirs = Heirs(lambda: store.registry, lambda _: engine, clock, "heir")
        await heirs.run_once()
        assert await totals(store) == {}
        clock.advance(SETTLE_AFTER_S)
        await heirs.run_once()
        assert await totals(store) == {"notified": 3}
        await engine.ack(leases[4:])
        clock.advance(SETTLE_AFTER_S)
        await heirs.run_once()
        clock.advance(SETTLE_AFTER_S)
        await heirs.run_once()
        assert await totals(store) == {"notified": 4}

        # In the end the dead process's record becomes part of the base.
        await heirs.run_once()
        clock.advance(MERGE_AFTER_S)
        await heirs.run_once()
        assert [record.key for record in await store.registry.list_records(KIND)] == ["1/"]
        assert await totals(store) == {"notified": 4}


async def test_one_that_was_taken_for_dead_counts_nothing_twice() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    async with Engine(store) as engine, make_tally(store, "slow") as slow:
        leases = await leased(engine, 2)

        async def ack() -> Acked:
            return await engine.ack(leases)

        await slow.finish(1, PLACE, leases, ack)
        heirs = Heirs(lambda: store.registry, lambda _: engine, clock, "heir")
        await heirs.run_once()
        clock.advance(SETTLE_AFTER_S)
        await heirs.run_once()
        assert await totals(store) == {"notified": 2}
        slow.count(1, PLACE, Count.WRITTEN)
        await slow._save(slow._sheets[1], [])
        assert await totals(store) == {"notified": 2, "written": 1}
        # Sealed and merged while it was idle, it goes on in a new record.
        await heirs.run_once()
        clock.advance(MERGE_AFTER_S)
        await heirs.run_once()
        slow.count(1, PLACE, Count.WRITTEN)
    assert await totals(store) == {"notified": 2, "written": 2}


async def test_an_heir_that_comes_during_a_slow_ack_takes_nothing_away() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    async with Engine(store) as engine, make_tally(store, "slow") as slow:
        heirs = Heirs(lambda: store.registry, lambda _: engine, clock, "heir")
        leases = await leased(engine, 3)

        async def ack() -> Acked:
            first = await engine.ack(leases[:1])
            await heirs.run_once()
            clock.advance(SETTLE_AFTER_S)
            await heirs.run_once()
            assert await totals(store) == {"notified": 1}
            return [*first, *await engine.ack(leases[1:])]

        await slow.finish(1, PLACE, leases, ack)
    assert await totals(store) == {"notified": 3}


async def test_what_is_counted_during_a_write_is_in_the_next() -> None:
    store = MemoryStore()
    tally = make_tally(store)
    put = store.registry.put

    async def slow_put(*arguments: str | bytes, **options: int) -> object:
        tally.count(1, PLACE, Count.FAILED)
        return await put(*arguments, **options)  # type: ignore[arg-type]

    async with tally:
        tally.count(1, PLACE, Count.WRITTEN)
        with mock.patch.object(store.registry, "put", slow_put):
            await tally._save(tally._sheets[1], [])
    assert await totals(store) == {"written": 1, "failed": 1}


async def test_counts_wait_for_a_registry_that_is_away() -> None:
    store = MemoryStore()
    registry: list[object] = [Broken()]
    tally = Tally(lambda: registry[0], "a", lambda: DAY)  # type: ignore[arg-type, return-value]
    async with Engine(store) as engine, tally:
        leases = await leased(engine, 2)

        async def ack() -> Acked:
            return await engine.ack(leases)

        assert len(await tally.finish(1, PLACE, leases, ack)) == 2
        registry[0] = store.registry
    assert await totals(store) == {"notified": 2}


# --- the SDK


def test_both_colours_of_the_sdk_are_one() -> None:
    def public(kind: type) -> dict[str, str]:
        found = inspect.getmembers(kind, inspect.isfunction)
        return {name: f"{inspect.signature(one)} {one.__doc__}" for name, one in found if not name.startswith("_")}

    assert public(client_topics.Topics) == public(client_topics.AsyncTopics)
