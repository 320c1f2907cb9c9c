"""Problems: lines with the numbers of now, for whoever may see them, that can be acted on."""

import re
import uuid
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

import duetime
from duetime.alerts.problems import FIRING, KEY, PAST, Firing, PastAlert, Problem
from duetime.callbacks.failing_topics import PREFIX
from duetime.callbacks.topic_registry import KIND as TOPICS
from duetime.callbacks.topic_registry import TopicAddress
from duetime.console.problems import SNOOZED, LiveProblem, Snooze, grouped, parse_key
from duetime.model.names import Queue
from duetime.model.topic import Status, Topic
from duetime.stores.base import RulesChange, Store
from duetime.stores.open import open_store
from tests.console.conftest import Visitor
from tests.e2e.shell import Shell
from tests.plugins.serving import Served
from tests.plugins.until import until


@pytest.fixture
async def store(console_server: Served) -> AsyncIterator[Store]:
    opened = await open_store(f"sqlite://{console_server.log.parent}/jobs.db")
    yield opened
    await opened.close()


def late(client: duetime.Client, name: str, jobs: int = 3) -> None:
    client.queue(name).bulk(["x"] * jobs, due_at="2026-01-01T00:00:00Z")


def test_the_keys_of_alerts_say_what_they_are_about() -> None:
    assert parse_key("default:late:billing/dunning") == ("late", "default", Queue("billing", "dunning"))
    assert parse_key("fast:memory") == ("memory", "fast", None)
    assert parse_key("fast:down:a") == ("part_down", "fast", None)
    assert parse_key("default:paused:a/b") == ("paused", "default", Queue("a", "b"))
    assert parse_key("something else") == ("other", "", None)
    two = [
        LiveProblem("late", "a", "p", None, 7),
        LiveProblem("down", "b", "p", None),
        LiveProblem("late", "c", "p", None, 3),
    ]
    assert [(kind, [one.key for one in found]) for kind, found in grouped(two)] == [
        ("down", ["b"]),
        ("late", ["c", "a"]),
    ]


async def test_a_nearly_full_pool_is_explained_in_the_visitor_s_language(boss: Visitor, store: Store) -> None:
    frozen = Firing(Problem("pool second has used 95 % of its room", "frozen text"), 1_794_000_000, 1_794_000_000)
    await store.registry.put(FIRING, "second:memory", msgspec.json.encode(frozen))
    try:
        await until(lambda: "Pool second is nearly full" in boss.get("").text)
        page = boss.get("").text
        assert re.search(r"[\d.]+ \w+ of [\d.]+ \w+ are used. A full store refuses pushes", page)
        assert "frozen text" not in page
    finally:
        await store.registry.delete(FIRING, "second:memory")


async def test_an_alert_is_shown_with_the_number_of_now_and_in_the_visitor_s_language(
    boss: Visitor, client: duetime.Client, store: Store
) -> None:
    name = f"p{uuid.uuid4().hex[:10]}"
    late(client, name)
    key = f"default:late:default/{name}"
    frozen = Firing(Problem(f"default/{name} is 186 s late", "run duetime dead list"), 1_794_000_000, 1_794_000_000)
    await store.registry.put(FIRING, key, msgspec.json.encode(frozen))
    await until(lambda: f"default/{name} is " in boss.get("").text)
    page = boss.get("").text
    assert "186 s late" not in page
    assert "duetime dead list" not in page
    boss.http.headers["accept-language"] = "zh"
    assert f"default/{name} 已逾期" in boss.get("").text
    boss.http.headers["accept-language"] = "en"
    boss.post("do/snooze", key=key)
    assert f"default/{name} is " not in boss.get("").text
    await store.registry.delete(FIRING, key)
    client.queue(name).purge()


async def test_failing_callbacks_that_no_process_has_counted_are_shown_without_a_number(
    boss: Visitor, store: Store
) -> None:
    key = PREFIX + TopicAddress("default", Queue("default", "forgotten")).key
    firing = Firing(Problem("callbacks of forgotten fail", ""), 1_794_000_000, 1_794_000_000)
    await store.registry.put(FIRING, key, msgspec.json.encode(firing))
    await until(lambda: "default/forgotten: callbacks fail<" in boss.get("").text)
    await store.registry.delete(FIRING, key)


async def test_problems_that_are_shown_again_are_forgotten(boss: Visitor, store: Store) -> None:
    old, new = "default:late:default/old", "default:late:default/new"
    await store.registry.put(SNOOZED, old, msgspec.json.encode(Snooze(1_794_000_000, "ann")))
    boss.post("do/snooze", key=new)
    assert new in (kept := [one.key for one in await store.registry.list_records(SNOOZED)])
    assert old not in kept


async def test_a_namespace_login_sees_its_own_problems_and_no_others(
    visitor: Visitor, console_server: Served, client: duetime.Client, store: Store
) -> None:
    folder = console_server.log.parent
    space = f"n{uuid.uuid4().hex[:8]}"
    [made] = Shell(f"sqlite://{folder}/jobs.db", folder).json(
        "token", "create", "--namespace", space, "--scope", "admin", "--scope", "read", "--scope", "write"
    )
    with duetime.connect(f"sqlite://{folder}/jobs.db", namespace=space) as own:
        late(own, "dunning")
        own.queue("dunning").configure(RulesChange(paused=True))
        late(client, f"other{space}")
        for key in (f"default:late:{space}/dunning", f"default:late:default/other{space}"):
            firing = Firing(Problem("x", "y"), 1_794_000_000, 1_794_000_000)
            await store.registry.put(FIRING, key, msgspec.json.encode(firing))
        visitor.post("login", namespace=space, password=made["token"])
        await until(lambda: "is paused, 3 jobs overdue" in visitor.get("").text)
        page = visitor.get("").text
        assert f"other{space}" not in page
        assert "No problems" not in page
        assert "The first points appear" not in page
        own.queue("dunning").purge()
    for key in (f"default:late:{space}/dunning", f"default:late:default/other{space}"):
        await store.registry.delete(FIRING, key)
    client.queue(f"other{space}").purge()


def test_a_paused_queue_keeps_its_lateness_and_is_named(boss: Visitor, client: duetime.Client) -> None:
    name = f"p{uuid.uuid4().hex[:10]}"
    late(client, name, 85)
    client.queue(name).configure(RulesChange(paused=True))
    try:
        page = boss.get("").text
        assert f"default/{name} is paused, 85 jobs overdue, the first by" in page
        [count] = re.findall(r"<title>\((\d+)\) Overview", page)
        assert f'<span class="n warm">{count}</span>' in page
        refreshed = boss.http.get(f"/console/queues?find={name}", headers={"hx-request": "true"}).text
        assert f"<title>({count}) Queues" in refreshed  # the title and the menu of an open page stay current
        assert f'<span class="n warm">{count}</span>' in refreshed
        queue = boss.get("queue", pool="default", namespace="default", queue=name).text
        assert "85 jobs are overdue, the first by" in queue
        assert "Resumed" in boss.post("do/resume", pool="default", namespace="default", queue=name).text
        assert f"default/{name} is paused" not in boss.get("").text
    finally:
        client.queue(name).purge()


async def test_past_alerts_are_said_in_the_visitor_s_language(boss: Visitor, store: Store) -> None:
    past = [PastAlert("x is late", "", 1_794_000_000, 1_794_000_090, key) for key in ("default:late:shop/x", "odd")]
    await store.registry.put(PAST, KEY, msgspec.json.encode(past))
    boss.http.headers["accept-language"] = "zh"
    await until(lambda: "shop/x 曾延误" in boss.get("alerts").text)
    assert "x is late" in boss.get("alerts").text


def test_a_namespace_login_cannot_hide_the_problems_of_another(
    boss: Visitor, client: duetime.Client, console_server: Served
) -> None:
    folder = console_server.log.parent
    shell = Shell(f"sqlite://{folder}/jobs.db", folder)
    [made] = shell.json("token", "create", "--namespace", "tenant", "--scope", "admin")
    tenant = Visitor(boss.admin)
    with tenant.http:
        assert tenant.post("login", namespace="tenant", password=made["token"]).status_code == 200
        for key in ("default:paused:default/other", "default:late:default/other", "default:memory"):
            answer = tenant.post("do/snooze", key=key)
            assert answer.status_code in (403, 404) or "no namespace" in answer.text, key
        assert "Hidden for an hour" in tenant.post("do/snooze", key="default:paused:tenant/own").text


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"halted": "its receiver answers 410"}, "deliveries are halted"),
        ({"status": Status.OFFLINE}, "new jobs are refused"),
    ],
    ids=["halted", "offline"],
)
async def test_a_topic_that_does_not_do_its_work_is_a_problem_until_it_is_online(
    boss: Visitor, store: Store, state: dict[str, Any], said: str
) -> None:
    name = f"h{uuid.uuid4().hex[:8]}"
    address = TopicAddress("default", Queue("default", name))
    topic = Topic(key=name, callback="http://127.0.0.1:9/", **state)
    await store.registry.put(TOPICS, address.key, msgspec.json.encode(topic))

    def line() -> str:
        return next((part for part in boss.get("").text.split("<li>") if f"default/{name}" in part), "")

    try:
        await until(lambda: said in line())
        assert state.get("halted", "") in line()
        assert re.search(r"<title>\(\d+\) ", boss.get("queues").text)  # it is counted in the title of every page
        boss.post("do/online", pool="default", namespace="default", queue=name)
        await until(lambda: said not in line())
    finally:
        await store.registry.delete(TOPICS, address.key)
