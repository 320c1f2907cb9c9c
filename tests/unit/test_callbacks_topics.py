"""Topics as records: their checks, where they are kept, and their counts."""

from collections.abc import AsyncIterator

import pytest
from msgspec import structs

from duetime.callbacks.topic_registry import OVERLAP_MS, TopicAddress, TopicRegistry
from duetime.callbacks.topic_service import TopicService
from duetime.engine import Engine
from duetime.engine.registry_copy import RegistryCopy
from duetime.model.clock import ManualClock
from duetime.model.errors import InvalidCondition, InvalidRequest, StoreUnavailable, TopicNotFound
from duetime.model.job import Lease, NewJob, State
from duetime.model.names import Queue
from duetime.model.topic import Status, Topic, check_topic
from duetime.stores.memory.store import MemoryStore
from duetime.wire.messages import TopicCountsOut

PLACE = TopicAddress("default", Queue("shop", "mail"))
URL = "https://shop.example.com/mail"
NOON_MS = 1_794_744_000_000
DAY = "20261115"


def a_topic(**fields: object) -> Topic:
    return structs.replace(Topic(key="mail", callback=URL), **fields)


def test_the_defaults_are_php_delayqueues() -> None:
    topic = a_topic()

    assert (topic.delay_ms, topic.method, topic.timeout_ms, topic.retry_if) == (0, "GET", 3000, "")
    assert (topic.priority, topic.status, topic.cap, topic.schedule) == (2, "online", 11, "odd-minutes")
    assert (topic.success, topic.lift_cap, topic.secret, topic.verify_tls) == ("body", False, "", True)
    assert topic.php_fields


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
def test_wrong_topics_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_topic(a_topic(**fields))

    assert refused.value.fields["path"] == "$." + next(iter(fields)).removesuffix("_ms")


def test_a_condition_is_checked_when_it_is_saved() -> None:
    with pytest.raises(InvalidCondition):
        check_topic(a_topic(retry_if="{res.code} ="))


async def test_a_change_by_another_process_is_seen_immediately() -> None:
    store = MemoryStore()
    ours = TopicRegistry(lambda: store.registry)
    async with RegistryCopy(lambda: store.registry) as registry_copy:
        followed = TopicRegistry(lambda: store.registry, registry_copy)
        with pytest.raises(TopicNotFound):
            await followed.find(PLACE)
        await ours.add(PLACE, a_topic())
        assert (await followed.find(PLACE)).callback == URL
        version = await registry_copy.changed(0)
        await ours.edit(PLACE, {"name": "Mails"})
        await registry_copy.changed(version)
        assert (await followed.find(PLACE)).name == "Mails"


async def test_a_secret_is_drawn_changed_over_and_ended() -> None:
    store, clock = MemoryStore(), ManualClock()
    topics = TopicRegistry(lambda: store.registry, clock=clock)

    first = (await topics.add(PLACE, a_topic(secret="new"))).secret
    assert first.startswith("whsec_")
    changed = await topics.edit(PLACE, {"secret": "new"})
    assert changed.secret != first
    assert (changed.old_secret, changed.old_secret_until) == (first, clock.now_ms() + OVERLAP_MS)
    unsigned = await topics.edit(PLACE, {"secret": ""})
    assert (unsigned.secret, unsigned.old_secret) == ("", "")
    for wrong in ("whsec_xyz", "whsec_" + "A" * 8):
        with pytest.raises(InvalidRequest):
            await topics.edit(PLACE, {"secret": wrong})


# --- counts


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    clock = ManualClock(NOON_MS)
    async with Engine(MemoryStore(clock)) as running:
        yield running


@pytest.fixture
async def service(engine: Engine) -> TopicService:
    return TopicService.of_engine(engine)


async def leased(engine: Engine, *ids: str) -> list[Lease]:
    await engine.push(PLACE.queue, [NewJob(job_id, b"{}") for job_id in ids])
    return [delivery.lease for delivery in await engine.reserve([PLACE.queue], limit=len(ids), ttr_ms=60_000)]


async def test_counts_are_the_events_of_the_queues_jobs(engine: Engine, service: TopicService) -> None:
    await service.add(PLACE, a_topic())
    acked, again, gave_up, given_back = await leased(engine, "a", "b", "c", "d")
    await engine.ack([acked])
    await engine.release(again, delay_ms=60_000)
    await engine.kill(gave_up)
    await engine.give_back([given_back])
    await service.jobs.delete(PLACE, "b")
    # What is neither written, notified, deleted nor failed: a kept push, a dead letter that goes, a purge.
    await engine.push(PLACE.queue, [NewJob("d", b"{}")])
    await service.jobs.delete(PLACE, "c")
    await engine.purge(PLACE.queue, list(State))
    # A replaced job is written twice; who finishes a job by its id was notified of it.
    await service.jobs.add(PLACE, "e", b"{}")
    await service.jobs.add(PLACE, "e", b"{}")
    await engine.ack_by_id(PLACE.queue, ["e"])

    shown = await service.get(PLACE)
    counters = await service.counters("default", "shop")

    assert shown.totals == TopicCountsOut(written=6, notified=2, deleted=1, failed=2)
    assert shown.days == {DAY: shown.totals}
    assert (counters.totals, counters.days) == (shown.totals, shown.days)
    assert counters.counters == {
        "1:total_write": 6,
        "1:total_notfiy": 2,
        "1:total_del": 1,
        f"1:tw:{DAY}": 6,
        f"1:tn:{DAY}": 2,
        f"1:te:{DAY}": 2,
        f"1:tdel:{DAY}": 1,
        "redis:default:dq_write_total_nums": 6,
        "redis:default:dq_notify_total_nums": 2,
        "redis:default:dq_del_total_nums": 1,
    }


async def test_sums_are_over_all_topics_of_the_namespace_and_removed_ones_with_jobs(
    engine: Engine, service: TopicService
) -> None:
    bills, others = TopicAddress("default", Queue("shop", "bills")), TopicAddress("default", Queue("other", "mail"))
    for place in (PLACE, bills, others):
        await service.add(place, a_topic(key=place.queue.name))
        await service.jobs.add(place, "1", b"{}")
    await service.jobs.add(bills, "2", b"{}")
    await service.remove(bills)

    counters = await service.counters("default", "shop")

    assert counters.totals == TopicCountsOut(written=3)
    assert counters.days == {DAY: TopicCountsOut(written=3)}
    assert (counters.counters["1:total_write"], counters.counters["2:total_write"]) == (1, 2)
    assert [topic.totals for topic in await service.list_topics("default", "shop")] == [TopicCountsOut(written=1)]


async def test_a_topic_is_shown_and_changed_while_its_pool_is_away(engine: Engine, service: TopicService) -> None:
    await service.add(PLACE, a_topic())

    def away(_: str) -> Engine:
        raise StoreUnavailable

    remote = TopicService(lambda: engine.store.registry, away)
    changed = await remote.set_status(PLACE, Status.OFFLINE)
    await remote.add(TopicAddress("default", Queue("shop", "bills")), a_topic(key="bills"))

    assert (changed.status, changed.totals) == (Status.OFFLINE, None)
    assert [topic.totals for topic in await remote.list_topics("default", "shop")] == [None, None]
    with pytest.raises(StoreUnavailable):
        await remote.counters("default", "shop")


async def test_the_queue_of_a_topic_is_kept(engine: Engine, service: TopicService) -> None:
    await service.add(PLACE, a_topic())

    assert (await engine.store.configure(PLACE.queue)).kept
