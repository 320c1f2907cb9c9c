"""The watchdog on real Redis servers that stop and start, with a real mail server behind it."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec
import pytest
import redis

from duetime.alerts.problems import (
    FIRING,
    KEY,
    PAST,
    QUIET_S,
    SETTINGS,
    Alerts,
    AlertSettings,
    DeploymentLock,
    Problem,
    read_past,
)
from duetime.alerts.watchdog import SLOW_EVERY, STRIKES, WINDOW_S, Watchdog, WatchTargets
from duetime.engine.pools import Pools
from duetime.engine.registry_copy import RegistryCopy
from duetime.model.clock import ManualClock
from duetime.model.errors import DuetimeError, StoreUnavailable
from duetime.model.job import NewJob, State
from duetime.model.names import Queue
from duetime.model.settings import group_url
from duetime.stores.base import StoreInfo
from duetime.stores.open import open_store
from duetime.stores.redis import keys
from tests.alerts.conftest import Postbox
from tests.plugins.redis_server import RedisServer
from tests.plugins.until import until

pytestmark = pytest.mark.store_kind("redis")

QUEUE = Queue("shop", "mail")
QUIET = int(QUIET_S)
StartRedis = Callable[..., RedisServer]


class Post:
    """One process's watchdog, with rounds that the test makes."""

    def __init__(
        self, pools: Pools, registry_copy: RegistryCopy, alerts: Alerts, watchdog: Watchdog, clock: ManualClock
    ) -> None:
        self.pools = pools
        self.registry_copy = registry_copy
        self.alerts = alerts
        self.watchdog = watchdog
        self.clock = clock

    async def rounds(self, number: int) -> None:
        """A second apart."""
        for _ in range(number):
            self.clock.advance("1s")
            await self.watchdog.run_once()
            with suppress(DuetimeError):
                await self.registry_copy.refresh()

    async def knows(self, *keys: str) -> None:
        """The registry says that exactly this is wrong."""
        await until(lambda: [record.key for record in self.registry_copy.list_records(FIRING)] == list(keys))


@asynccontextmanager
async def post(urls: dict[str, str], registry: str, postbox: Postbox, **targets: float) -> AsyncIterator[Post]:
    wanted = msgspec.convert(targets, WatchTargets)
    async with AsyncExitStack() as stack:
        pools = await stack.enter_async_context(Pools(urls, open_store=open_store, registry_url=registry))
        registry_copy = await stack.enter_async_context(RegistryCopy(lambda: pools.registry))
        settings = AlertSettings(("ops@example.com",), postbox.server)
        await pools.registry.put(SETTINGS, KEY, msgspec.json.encode(settings))
        await registry_copy.refresh()
        clock = ManualClock()
        alerts = Alerts(
            lambda: pools.registry,
            registry_copy,
            deployment=registry,
            clock=clock,
            mail_domains=["example.com"],
        )
        await stack.enter_async_context(alerts)
        yield Post(pools, registry_copy, alerts, Watchdog(pools, alerts, wanted, ping_s=0.3, clock=clock), clock)


async def together(*posts: Post, seconds: int) -> None:
    for _ in range(seconds):
        for each in posts:
            await each.rounds(1)


async def bury(post: Post, number: int) -> None:
    """Add dead letters."""
    engine = post.pools.engine("default")
    await engine.push(QUEUE, [NewJob(f"dead-{one}", b"") for one in range(number)])
    for delivery in await engine.reserve([QUEUE], limit=number):
        await engine.kill(delivery.lease, error="no")


async def test_dead_letters_are_told_once_also_when_a_process_is_replaced(redis_url: str, postbox: Postbox) -> None:
    """One that begins after they came has not seen them grow, and says nothing about it."""
    urls = {"default": redis_url}
    async with AsyncExitStack() as stack:
        start = partial(post, urls, redis_url, postbox, dead_growth=10)
        first, second = [await stack.enter_async_context(start()) for _ in range(2)]
        await first.rounds(5)  # so that the two look at different moments
        await together(first, second, seconds=2)
        await bury(first, 60)
        await together(first, second, seconds=SLOW_EVERY)
        await postbox.wait_for(1)

        third = await stack.enter_async_context(start())
        await together(first, third, seconds=45)
        fourth = await stack.enter_async_context(start())
        await together(third, fourth, seconds=45)  # of those who saw them come, nobody is left
        assert postbox.subjects == ["Duetime: shop/mail gained 60 dead letters"]

        await together(third, fourth, seconds=int(WINDOW_S) + 2 * SLOW_EVERY)
        await postbox.wait_for(2)
        await together(third, fourth, seconds=45)
        assert postbox.subjects[1:] == ["Duetime: over: shop/mail gained 60 dead letters"]


async def test_who_looks_at_another_moment_neither_ends_nor_repeats_a_problem(redis_url: str, postbox: Postbox) -> None:
    async with (
        post({"default": redis_url}, redis_url, postbox, lateness_s=60) as one,
        post({"default": redis_url}, redis_url, postbox, lateness_s=60) as other,
    ):
        engine = one.pools.engine("default")
        now = (await engine.store.ping()).now
        await one.rounds(5)
        await together(one, other, seconds=2)
        await engine.push(QUEUE, [NewJob("a", b"", due_at=now - 90_000)])
        await together(one, other, seconds=45)
        await postbox.wait_for(1)
        await engine.purge(QUEUE, [State.READY])
        await together(one, other, seconds=45)
        await postbox.wait_for(2)
        await together(one, other, seconds=45)

        assert [subject.partition("shop/mail")[0] for subject in postbox.subjects] == ["Duetime: ", "Duetime: over: "]
        [past] = read_past(await one.pools.registry.get(PAST, KEY))
        assert f"Duetime: {past.title}" == postbox.subjects[0]


async def test_one_store_of_a_pool_that_is_down_is_told_once_and_over_when_it_is_back(
    start_redis: StartRedis, redis_url: str, postbox: Postbox
) -> None:
    members = {name: start_redis() for name in "ab"}
    wide = group_url("wide", {name: server.url for name, server in members.items()}, [])
    urls = {"default": redis_url, "wide": wide}
    async with post(urls, redis_url, postbox) as one, post(urls, redis_url, postbox) as other:
        members["b"].stop()
        await together(one, other, seconds=45)
        await postbox.wait_for(1)
        members["b"].start()

        async def is_back() -> bool:
            return not any([(await each.pools.engine("wide").store.ping()).problems for each in (one, other)])

        await until(is_back)
        await together(one, other, seconds=45)
        await postbox.wait_for(2)
        told = "pool wide misses one of its stores"
        assert postbox.subjects == [f"Duetime: {told}", f"Duetime: over: {told}"]


async def test_a_pool_that_only_one_process_cannot_reach_is_down_for_as_long(
    redis_url: str, postbox: Postbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unreachable() -> StoreInfo:
        raise StoreUnavailable("no connection")

    urls = {"default": redis_url, "big": "memory:"}
    async with post(urls, redis_url, postbox) as one, post(urls, redis_url, postbox) as other:
        monkeypatch.setattr(one.pools.engine("big").store, "ping", unreachable)
        await together(one, other, seconds=45)
        await postbox.wait_for(1)

        assert postbox.subjects == ["Duetime: pool big is down"]


async def test_a_pool_that_goes_down_and_comes_back_is_told_once_each(
    start_redis: StartRedis, redis_url: str, postbox: Postbox
) -> None:
    server = start_redis()
    urls = {"default": redis_url, "big": server.url}
    async with post(urls, redis_url, postbox) as one, post(urls, redis_url, postbox) as other:
        await one.rounds(2)
        server.stop()
        await one.rounds(STRIKES - 1)
        await other.rounds(STRIKES - 1)
        assert postbox.mails == []
        for _ in range(3):
            await one.rounds(1)
            await other.rounds(1)
        await postbox.wait_for(1)
        await other.knows("big:down")
        server.start()

        async def is_up() -> bool:
            try:
                await one.pools.engine("big").store.ping()
                await other.pools.engine("big").store.ping()
            except Exception:
                return False
            return True

        await until(is_up)
        await together(one, other, seconds=QUIET + 2)
        await postbox.wait_for(2)
        assert postbox.subjects == ["Duetime: pool big is down", "Duetime: over: pool big is down"]
        await one.knows()


async def test_an_outage_of_the_registry_itself_is_told_by_one_of_the_machine(
    start_redis: StartRedis, postbox: Postbox
) -> None:
    server = start_redis(save="3600 1")  # who receives alerts is a record of this registry
    urls = {"default": server.url}
    async with post(urls, server.url, postbox) as one, post(urls, server.url, postbox) as other:
        await one.rounds(1)
        server.stop()
        for _ in range(STRIKES + 1):
            await one.rounds(1)
            await other.rounds(1)
        await postbox.wait_for(1)
        server.start()

        async def is_up() -> bool:
            await one.rounds(1)
            await other.rounds(1)
            return len(postbox.mails) >= 2

        await until(is_up)
        assert postbox.subjects == ["Duetime: pool default is down", "Duetime: over: pool default is down"]


async def test_memory_near_its_limit(start_redis: StartRedis, redis_url: str, postbox: Postbox) -> None:
    server = start_redis(maxmemory="3mb")
    async with post({"default": redis_url, "big": server.url}, redis_url, postbox, memory_percent=90) as one:
        engine = one.pools.engine("big")
        for number in range(10):
            info = await engine.store.ping()
            if info.used_bytes >= 0.95 * info.max_bytes:
                break
            await engine.push(QUEUE, [NewJob(f"{number}", b"x" * 200_000)])
        await one.rounds(SLOW_EVERY)
        await postbox.wait_for(1)
        assert "pool big has used 9" in postbox.subjects[0]
        await engine.purge(QUEUE, list(msgspec.convert(["delayed", "ready"], list)))
        await one.knows("big:memory")
        await one.rounds(SLOW_EVERY + QUIET + 1)
        await postbox.wait_for(2)
        assert postbox.subjects[1].startswith("Duetime: over: pool big")


async def test_many_queues_are_looked_at_less_often(
    redis_url: str, postbox: Postbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duetime.alerts.watchdog.QUEUES_PER_ROUND", 1)
    async with post({"default": redis_url}, redis_url, postbox, dead_growth=1, lateness_s=0) as one:
        for number in range(3 * SLOW_EVERY):
            await one.pools.engine("default").push(Queue("shop", f"q{number}"), [NewJob("a", b"")])
        await one.rounds(1)
        await bury(one, 1)
        await one.rounds(2 * SLOW_EVERY)
        assert one.registry_copy.list_records(FIRING) == []
        await one.rounds(SLOW_EVERY)
        await one.knows("default:dead:shop/mail")


async def test_dead_letters_that_grow(redis_url: str, postbox: Postbox) -> None:
    async with post({"default": redis_url}, redis_url, postbox, dead_growth=3, lateness_s=0) as one:
        engine = one.pools.engine("default")

        async def bury(*ids: str) -> None:
            await engine.push(QUEUE, [NewJob(job_id, b"") for job_id in ids])
            for delivery in await engine.reserve([QUEUE], limit=10):
                await engine.kill(delivery.lease, error="no")

        await bury("old-1", "old-2", "old-3", "old-4")
        await one.rounds(SLOW_EVERY)
        await bury("1", "2")
        await one.rounds(SLOW_EVERY)
        assert postbox.mails == []
        await bury("3")
        await one.rounds(SLOW_EVERY)
        await postbox.wait_for(1)
        assert postbox.subjects == ["Duetime: shop/mail gained 3 dead letters"]
        assert "duetime failed list mail --namespace shop" in postbox.text(0)


async def test_a_queue_that_nobody_drains_is_late(redis_url: str, postbox: Postbox) -> None:
    async with post({"default": redis_url}, redis_url, postbox, lateness_s=60) as one:
        engine = one.pools.engine("default")
        now = (await engine.store.ping()).now
        await engine.push(QUEUE, [NewJob("a", b"", due_at=now - 90_000)])
        await engine.push(Queue("shop", "fresh"), [NewJob("a", b"")])
        await one.rounds(1)
        await postbox.wait_for(1)
        await one.knows("default:late:shop/mail")
        assert postbox.subjects[0].startswith("Duetime: shop/mail is 9")


async def test_only_queues_with_due_jobs_are_asked_how_late_they_are(
    redis_url: str, postbox: Postbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with post({"default": redis_url}, redis_url, postbox, lateness_s=60) as one:
        engine, asked = one.pools.engine("default"), set[Queue]()
        heads = engine.store.heads

        async def record(queues: Sequence[Queue]) -> Sequence[int | None]:
            asked.update(queues)
            return await heads(queues)

        monkeypatch.setattr(engine.store, "heads", record)
        await engine.push(Queue("shop", "due"), [NewJob("a", b"")])
        await engine.push(Queue("shop", "later"), [NewJob("a", b"", delay_ms=3_600_000)])
        await one.rounds(SLOW_EVERY)
        assert asked == {Queue("shop", "due")}


async def test_a_problem_that_lasts_is_told_again_after_a_while(redis_url: str, postbox: Postbox) -> None:
    async with post({"default": redis_url}, redis_url, postbox) as one:
        impatient = Alerts(
            lambda: one.pools.registry, one.registry_copy, deployment="x", repeat_s=0, mail_domains=["example.com"]
        )
        problem = Problem("it burns", "put it out", ("boss@example.com",))
        await impatient.judge({"default:fire": problem}, lambda key: True)
        await postbox.wait_for(2)
        await one.knows("default:fire")
        await impatient.judge({"default:fire": problem}, lambda key: True)
        await postbox.wait_for(4)
        assert sorted(postbox.subjects) == ["Duetime: it burns"] * 2 + ["Duetime: still: it burns"] * 2
        assert {to for mail, _ in postbox.mails for to in mail} == {"ops@example.com", "boss@example.com"}


async def test_events_of_one_kind_are_told_once_in_a_while(redis_url: str, postbox: Postbox) -> None:
    async with (
        post({"default": redis_url}, redis_url, postbox) as one,
        post({"default": redis_url}, redis_url, postbox) as other,
    ):
        for _ in range(3):
            await one.alerts.event("given_up", "topic order failed", "curl ...", ["team@example.com"])
            await other.alerts.event("given_up", "topic order failed", "curl ...", ["team@example.com"])
        await other.alerts.event("given_up", "topic mail failed", "curl ...")
        await postbox.wait_for(3)
    assert sorted(postbox.subjects) == ["Duetime: topic mail failed"] + ["Duetime: topic order failed"] * 2
    assert {to for mail, _ in postbox.mails for to in mail} == {"ops@example.com", "team@example.com"}


async def test_alerts_are_sent_in_chinese(redis_url: str, postbox: Postbox) -> None:
    async with post({"default": redis_url}, redis_url, postbox) as one:
        one.alerts.language = "zh"
        await one.alerts.event("given_up", "a callback of order failed for good", "gave up after 3 attempts: 503")
        await postbox.wait_for(1)
    assert postbox.subjects == ["Duetime: order 的一个回调最终失败"]
    assert postbox.text(0).startswith("尝试 3 次后放弃")


async def test_events_do_not_pile_up_while_the_registry_is_down(start_redis: StartRedis, postbox: Postbox) -> None:
    server = start_redis()
    async with post({"default": server.url}, "", postbox) as one:
        server.stop()
        for _ in range(3):
            await one.alerts.event("given_up", "topic order failed", "curl ...")
        await postbox.wait_for(1)
    assert postbox.subjects == ["Duetime: topic order failed"]


async def test_entries_that_were_set_aside_are_told(redis_url: str, postbox: Postbox) -> None:
    async with post({"default": redis_url}, redis_url, postbox) as watching:
        engine = watching.pools.engine("default")
        await engine.push(QUEUE, [NewJob("a", b"")])
        with redis.Redis.from_url(redis_url) as client:
            client.hset(f"{keys.prefix(QUEUE)}:jobs", "a", "foreign")
        assert await engine.reserve([QUEUE]) == []

        await watching.rounds(SLOW_EVERY)

        await watching.knows(f"default:damaged:{QUEUE}")
        await postbox.wait_for(1)


async def test_topics_mail_only_to_allowed_domains(redis_url: str, postbox: Postbox) -> None:
    async with post({"default": redis_url}, redis_url, postbox) as one:
        addresses = ["team@Example.com", "victim@elsewhere.example", "victim@sub.example.com"]
        await one.alerts.event("given_up", "topic order failed", "curl ...", addresses)
        await postbox.wait_for(2)
    assert sorted(receiver for receivers, _ in postbox.mails for receiver in receivers) == [
        "ops@example.com",
        "team@Example.com",
    ]


def test_another_user_cannot_hold_the_lock_that_decides_who_speaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    locks = [DeploymentLock("redis://one")]
    assert locks[0].is_leader()
    assert list((tmp_path / "home/.cache/duetime").glob("*.leader"))

    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "session"))
    (tmp_path / "session/duetime").mkdir(0o777, parents=True)
    locks += [DeploymentLock("redis://one"), DeploymentLock("redis://one")]
    assert (locks[1].is_leader(), locks[2].is_leader()) == (True, False)
    [lock] = (tmp_path / "session/duetime").iterdir()
    assert (lock.stat().st_mode & 0o777, lock.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    locks[1].close()
    assert locks[2].is_leader()

    monkeypatch.setenv("RUNTIME_DIRECTORY", f"{tmp_path}/unit:{tmp_path}/other")
    locks.append(DeploymentLock("redis://one"))
    assert locks[3].is_leader()
    assert list((tmp_path / "unit/duetime").glob("*.leader"))
    for one in locks:
        one.close()


def test_every_process_speaks_if_there_is_no_place_for_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path / "file"))
    assert [DeploymentLock("redis://one").is_leader() for _ in range(2)] == [True, True]
