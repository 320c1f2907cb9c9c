"""Callbacks that fail, with a real receiver and a real mail server: told once, over when a call works again."""

import asyncio
import shlex
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC

import msgspec
import pytest
from msgspec import structs

from duetime.alerts.problems import FIRING, KEY, SETTINGS, Alerts, AlertSettings
from duetime.alerts.watchdog import Watchdog, WatchTargets
from duetime.callbacks.courier import Courier
from duetime.callbacks.failing_topics import FailingCallbacks
from duetime.callbacks.outcome import Streak
from duetime.callbacks.topic_registry import TopicAddress, TopicRegistry
from duetime.callbacks.topic_service import TopicJobs
from duetime.engine.pools import Pools
from duetime.engine.registry_copy import RegistryCopy
from duetime.model.errors import InvalidRequest
from duetime.model.job import State
from duetime.model.names import Queue
from duetime.model.topic import Method, Topic
from duetime.stores.open import open_store
from tests.alerts.conftest import Postbox
from tests.courier.conftest import OPTIONS
from tests.courier.receiver import EMPTY, OK, Receiver
from tests.plugins.until import until

PLACE = TopicAddress("default", Queue("shop", "mail"))
DOMAINS = ["example.com", "b.example"]
FAILED, OVER = "Duetime: callbacks of Mails fail", "Duetime: over: callbacks of Mails fail"


class Node:
    """A server process's courier and watchdog, with rounds that the test makes."""

    def __init__(self, pools: Pools, registry_copy: RegistryCopy, courier: Courier, watchdog: Watchdog) -> None:
        self.pools = pools
        self.registry_copy = registry_copy
        self.courier = courier
        self.watchdog = watchdog
        self.topics = TopicRegistry(lambda: pools.registry, registry_copy, mail_domains=DOMAINS)
        self.desk = TopicJobs(pools.engine, self.topics, zone=UTC)

    @property
    def streak(self) -> Streak:
        return self.courier.streaks()[PLACE][1]

    async def add(self, *ids: str) -> None:
        for job_id in ids:
            await self.desk.add(PLACE, job_id, {"to": "ann"})

    async def tells(self, *, firing: bool) -> None:
        """Make rounds until the registry says so, and a few more."""

        async def is_so() -> bool:
            await self.watchdog.run_once()
            return bool(self.registry_copy.list_records(FIRING)) is firing

        await until(is_so)
        for _ in range(3):
            await self.watchdog.run_once()

    async def purge(self) -> None:
        await self.pools.engine("default").purge(PLACE.queue, [State.DELAYED, State.READY])


@asynccontextmanager
async def node(pools: Pools, name: str) -> AsyncIterator[Node]:
    async with AsyncExitStack() as stack:
        registry_copy = await stack.enter_async_context(RegistryCopy(lambda: pools.registry))
        alerts = Alerts(lambda: pools.registry, registry_copy, deployment="failing", mail_domains=DOMAINS)
        await stack.enter_async_context(alerts)
        courier = await stack.enter_async_context(Courier(pools, registry_copy, options=OPTIONS, alert=alerts.event))
        failing = FailingCallbacks(courier.streaks, pools, registry_copy, failures=10, after_s=0)
        watchdog = Watchdog(pools, alerts, WatchTargets(dead_growth=0, lateness_s=0), more=failing)
        yield Node(pools, registry_copy, courier, watchdog)


@pytest.fixture
async def pools(postbox: Postbox) -> AsyncIterator[Pools]:
    async with Pools({"default": "memory:"}, open_store=open_store) as opened:
        settings = AlertSettings(("ops@example.com",), postbox.server)
        await opened.registry.put(SETTINGS, KEY, msgspec.json.encode(settings))
        yield opened


@pytest.fixture
async def one(pools: Pools) -> AsyncIterator[Node]:
    async with node(pools, "one") as made:
        yield made


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver() as running:
        yield running


async def begin(*nodes: Node, callback: str) -> None:
    topic = Topic(key="mail", name="Mails", callback=callback, alert=("team@example.com",), schedule="1h")
    await nodes[0].topics.add(PLACE, topic)
    await until(lambda: all(PLACE in node.courier.streaks() for node in nodes))


async def fail(node: Node, number: int = 10) -> None:
    before = node.streak.failures
    await node.add(*(f"{before + one}" for one in range(number)))
    await until(lambda: node.streak.failures == before + number)


async def test_a_topic_that_fails_is_told_once_and_so_is_its_recovery(
    one: Node, receiver: Receiver, postbox: Postbox
) -> None:
    receiver.answer = lambda call: EMPTY
    await begin(one, callback=receiver.url)
    await fail(one, 9)
    await one.tells(firing=False)
    await fail(one, 1)
    await one.tells(firing=True)
    await postbox.wait_for(2)
    assert postbox.subjects == [FAILED] * 2
    assert {to for mail, _ in postbox.mails for to in mail} == {"ops@example.com", "team@example.com"}
    assert "10 attempts in a row failed" in postbox.text(0)
    assert "HTTP 200 with an empty answer" in postbox.text(0)

    receiver.answer = lambda call: OK
    await one.add("works")
    await one.tells(firing=False)
    await postbox.wait_for(4)
    assert postbox.subjects == [FAILED] * 2 + [OVER] * 2


async def test_a_receiver_that_cannot_be_reached(one: Node, postbox: Postbox) -> None:
    async with Receiver() as gone:
        url = gone.url
    await begin(one, callback=url)
    await fail(one)
    await one.tells(firing=True)
    await postbox.wait_for(2)
    assert "no connection" in postbox.text(0)


async def test_a_process_that_made_no_call_does_not_say_that_all_is_well(
    one: Node, pools: Pools, receiver: Receiver, postbox: Postbox
) -> None:
    receiver.answer = lambda call: EMPTY
    await begin(one, callback=receiver.url)
    await fail(one)
    await one.tells(firing=True)
    async with node(pools, "other") as other:
        await until(lambda: PLACE in other.courier.streaks())
        await other.tells(firing=True)
    async with node(pools, "idle") as idle:
        await idle.courier._stop_reserving()
        await idle.tells(firing=True)
    await postbox.wait_for(2)
    assert postbox.subjects == [FAILED] * 2


async def test_what_one_process_saw_end_does_not_begin_again_in_another(
    one: Node, pools: Pools, receiver: Receiver, postbox: Postbox
) -> None:
    async with node(pools, "other") as other:
        receiver.answer = lambda call: EMPTY
        await begin(one, other, callback=receiver.url)
        for process in (one, other):
            process.streak.failures = 10
            process.streak.since = 1.0
        await one.add("waits")
        await one.tells(firing=True)
        await other.tells(firing=True)
        await postbox.wait_for(2)
        one.streak.worked()
        await one.tells(firing=False)
        await other.tells(firing=False)
    await postbox.wait_for(4)
    assert postbox.subjects == [FAILED] * 2 + [OVER] * 2


@pytest.mark.parametrize("how", ["emptied", "removed"])
async def test_a_problem_without_jobs_or_topic_is_over(
    one: Node, receiver: Receiver, postbox: Postbox, how: str
) -> None:
    receiver.answer = lambda call: EMPTY
    await begin(one, callback=receiver.url)
    await fail(one)
    await one.tells(firing=True)
    await (one.purge() if how == "emptied" else one.topics.remove(PLACE))
    await one.tells(firing=False)
    await postbox.wait_for(4)
    assert sorted(postbox.subjects) == [FAILED] * 2 + [OVER] * 2


async def test_the_mail_about_a_job_that_was_given_up_has_a_command_that_repeats_the_call(
    one: Node, receiver: Receiver, postbox: Postbox
) -> None:
    receiver.answer = lambda call: EMPTY
    topic = Topic(
        key="mail",
        name="Mails",
        callback=receiver.url,
        method=Method.POST,
        schedule="1ms",
        cap=0,
        alert=("a@example.com",),
    )
    await one.topics.add(PLACE, topic)
    await one.desk.add(PLACE, "17", {"to": "ann's & <bob>", "n": 1})
    await postbox.wait_for(2)

    assert postbox.subjects == ["Duetime: a callback of Mails failed for good"] * 2
    text = postbox.text(0)
    assert "topic: Mails (shop/mail)" in text
    assert "job: 17" in text
    [command] = [line for line in text.splitlines() if line.startswith("curl ")]
    words = shlex.split(command)
    assert words[:3] == ["curl", "-X", "POST"]
    assert words[-1] == receiver.url
    if shutil.which("curl"):
        calls = len(receiver.calls)
        program = await asyncio.create_subprocess_exec(*words, "-s")
        assert await program.wait() == 0
        again = receiver.calls[calls]
        assert (again.method, again.fields) == ("POST", receiver.calls[calls - 1].fields)
        assert again.fields["to"] == "ann's & <bob>"


async def test_a_topic_reaches_mail_addresses_and_named_channels_and_nothing_else(
    one: Node, pools: Pools, receiver: Receiver, postbox: Postbox
) -> None:
    """Whoever edits topics must not make the server call where callbacks may not go."""
    async with Receiver() as channel, Receiver() as secret:
        settings = AlertSettings((), postbox.server, {"chat": f"json://127.0.0.1:{channel.port}/"})
        await pools.registry.put(SETTINGS, KEY, msgspec.json.encode(settings))
        forbidden = f"json://127.0.0.1:{secret.port}/admin?method=DELETE&+x-token=1"
        topic = Topic(key="mail", callback=receiver.url, schedule="1ms", cap=0)
        wrong = (
            (forbidden,),
            ("unknown",),
            ("chat", "a@b.example/x"),
            ("a@b.example,c@d.example",),
            ("a@x.b.example",),
        )
        for alert in wrong:
            with pytest.raises(InvalidRequest) as refused:
                await one.topics.add(PLACE, structs.replace(topic, alert=alert))
            assert refused.value.fields["path"] == "$.alert"
        await one.topics.add(PLACE, structs.replace(topic, alert=("chat", "a@b.example")))
        with pytest.raises(InvalidRequest):
            await one.topics.edit(PLACE, {"alert": (forbidden,)})
        with pytest.raises(InvalidRequest):
            await one.topics.edit(PLACE, {"alert": ("unknown",)})
        with pytest.raises(InvalidRequest, match="alert_mail_domains"):
            await one.topics.edit(PLACE, {"alert": ("victim@elsewhere.example",)})
        # A URL, a channel that was removed, and mail to a domain that is not allowed any more.
        record = await pools.registry.get("topic", PLACE.key)
        assert record
        stored = msgspec.json.decode(record.value, type=Topic)
        old = structs.replace(stored, alert=(forbidden, "unknown", "victim@elsewhere.example", *stored.alert))
        await pools.registry.put("topic", PLACE.key, msgspec.json.encode(old))
        await until(lambda: PLACE in one.courier.streaks() and one.courier.streaks()[PLACE][0].alert == old.alert)
        receiver.answer = lambda call: EMPTY

        await one.add("1")

        await postbox.wait_for(1)
        await channel.got(1)
        assert {to for mail, _ in postbox.mails for to in mail} == {"a@b.example"}
        assert secret.open == 0


async def test_a_short_fall_is_no_news() -> None:
    now = [100.0]
    streak = Streak(lambda: now[0])
    for _ in range(50):
        streak.failed("no connection")
    now[0] += 29
    assert not streak.is_long(10, 30)
    now[0] += 1
    assert streak.is_long(10, 30)
    streak.worked()
    assert not streak.is_long(10, 30)


def test_a_long_answer_is_told_in_one_short_line() -> None:
    streak = Streak()
    streak.failed("HTTP 501: <html>\n<body>\n" + "<p>no such\tmethod</p>\n" * 100)
    assert streak.why.startswith("HTTP 501: <html> <body> <p>no such method</p>")
    assert len(streak.why) <= 300
