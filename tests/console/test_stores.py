"""What the console says of stores, of the journal, of duties that hang and of topics whose receiver fails."""

import re
import time
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import httpx
import msgspec
import pytest

import duetime
from duetime.alerts.problems import KEY, PAST, PastAlert
from duetime.client.topics import Topics
from duetime.console.live import ProcessState
from duetime.console.meter_samples import JournalLag
from duetime.console.pages.overview import stuck_duties
from duetime.console.settings_file import change_stores, with_stores
from duetime.stores.open import open_store
from duetime.stores.registry import BRIDGE, GROUP_DRAIN, read_drain
from duetime.wire.payload import PAUSES, RESTARTS
from duetime.wire.worker_beats import WorkerBeat, beat_name
from duetime.worker.shared_counters import count
from tests.console.visible_words import english_words
from tests.plugins.ports import find_free_port
from tests.plugins.redis_server import RedisServer
from tests.plugins.serving import Served, serving
from tests.plugins.until import until

NAMES = ("default", "wide", "tall", "odd", "ticks", "high")
"""Pools and namespaces of the tests of this file, which run in any order."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("pools")
    stores = ", ".join(f'{name} = "sqlite:{folder}/{name}.db"' for name in "abc")
    tiers = "\n".join(f'{name} = "sqlite:{folder}/{name}.db"' for name in ("hot", "cold"))
    (folder / "duetime.toml").write_text(
        f'[pool.wide]\nstores = {{ {stores} }}\ndrain = ["b"]\n[pool.tall]\n{tiers}\nhorizon = "1h"\n'
    )
    with serving(folder, "--dev", DUETIME_CALLBACK_ALLOW="127.0.0.0/8") as served:
        yield served
    assert "Traceback" not in served.log.read_text()


def page(site: Served, path: str) -> str:
    return httpx.get(f"{site.admin}/console/{path}", timeout=60).raise_for_status().text


def test_members_of_a_group_are_shown_with_the_one_that_drains(site: Served) -> None:
    shown = page(site, "stores")
    assert "/a.db" in shown
    chinese = httpx.get(f"{site.admin}/console/stores", headers={"accept-language": "zh"}, timeout=60).text
    assert english_words(chinese, *NAMES, "PostgreSQL", "MySQL", "SQLite") == set()
    assert shown.count(">drains<") == 1
    # The pools default and wide, the members of wide, and twice each tier of tall.
    assert shown.count("every commit, synchronous=FULL") == 9
    # The room of the jobs is shown apart from that of the whole disk, also for a group.
    assert shown.count("<dt>Size</dt>") == shown.count("<dt>Whole disk</dt>") == 3


def test_a_tiered_pool_shows_how_many_jobs_each_tier_has(site: Served) -> None:
    folder = site.log.parent
    url = f"tiered:tall?hot=sqlite://{folder}/hot.db&cold=sqlite://{folder}/cold.db&horizon=1h"
    with duetime.connect(url, namespace="high") as client:
        client.queue("far").bulk(["x"] * 3, delay="2d")
        client.queue("far").push("x")
    assert re.search(
        r"Hot / cold</span><span class=\"value\">1 / 3<", page(site, "queue?pool=tall&namespace=high&queue=far")
    )
    assert re.search(r'data-label="Hot / cold">1 / 3<', page(site, "queues?sort=cold"))
    assert re.search(r"<strong>cold</strong> 3 jobs", page(site, "stores"))


async def test_a_member_of_a_group_drains_by_a_button_and_takes_jobs_again(site: Served) -> None:
    def act(action: str, member: str) -> httpx.Response:
        return httpx.post(
            f"{site.admin}/console/do/{action}",
            data={"pool": "wide", "member": member},
            headers={"origin": site.admin},
            follow_redirects=True,
            timeout=60,
        )

    assert 'name="member" value="b"' not in page(site, "stores")  # its drain is a setting
    assert "takes no new jobs" in act("drain", "c").text
    await until(lambda: page(site, "stores").count(">drains<") == 2)
    assert "At least one store" in act("drain", "a").text
    assert "no such store" in act("drain", "nobody").text
    assert "takes new jobs again" in act("undrain", "c").text
    await until(lambda: page(site, "stores").count(">drains<") == 1)
    log = page(site, "audit")
    assert '>Drain store</td><td class="wide">wide c</td>' in log
    assert '>End drain</td><td class="wide">wide c</td>' in log


FILE = """# stores of the shop
[pool.default]
stores = { a = "redis://127.0.0.1:1/0" }  # the first one
drain = [ ]

[accounts]
"""


def test_a_store_is_added_to_one_line_of_the_settings_file_and_removed_again() -> None:
    added = with_stores(FILE, "default", {"b": "redis://x:p@10.0.0.2/0"})
    assert added is not None
    assert added.count("\n") == FILE.count("\n")
    assert "# stores of the shop\n" in added
    assert 'stores = { a = "redis://127.0.0.1:1/0", b = "redis://x:p@10.0.0.2/0" }  # the first one\n' in added
    assert with_stores(added, "default", {"b": None}) == FILE.replace("[ ]", "[]")


@pytest.mark.parametrize(
    "text",
    [
        '[pool.default.stores]\na = "redis://a/0"\n',
        '[pool]\ndefault = { stores = { a = "redis://a/0" } }\n',
        '[pool."default"]\nstores = { a = "redis://a/0" }\n',
        '[pool.default]\nstores.a = "redis://a/0"\n',
    ],
)
def test_a_file_in_another_form_is_left_alone(text: str) -> None:
    assert with_stores(text, "default", {"b": "redis://b/0"}) is None


def test_stores_that_are_added_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    file = tmp_path / "duetime.toml"
    file.write_text(FILE)
    file.chmod(0o640)
    names = [f"b{number}" for number in range(20)]
    with ThreadPoolExecutor(10) as threads:
        list(threads.map(lambda name: change_stores(file, "default", {name: f"redis://{name}/0"}), names))
    assert set(names) < set(tomllib.loads(file.read_text())["pool"]["default"]["stores"])
    assert file.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [file]


async def test_a_store_that_must_be_added_by_hand_takes_jobs_then(
    tmp_path: Path, start_redis: Callable[..., RedisServer]
) -> None:
    first, second = start_redis(), start_redis()
    (tmp_path / "duetime.toml").write_text(f'[pool.wide.stores]\na = "{first.url}"\n')
    with serving(tmp_path, "--dev") as site:
        fields = {"pool": "wide", "name": "b", "url": second.url}
        async with httpx.AsyncClient(timeout=60, headers={"origin": site.admin}) as browser:
            answer = await browser.post(f"{site.admin}/console/do/add-store", data=fields)
    assert "by hand" in answer.text
    store = await open_store(f"group:wide?a={quote(first.url, safe='')}")
    try:
        assert read_drain(await store.registry.get(GROUP_DRAIN, "wide")) == frozenset()
    finally:
        await store.close()


async def test_a_redis_is_added_takes_jobs_drains_and_is_removed(
    tmp_path: Path, start_redis: Callable[..., RedisServer]
) -> None:
    first, second = start_redis(), start_redis()
    (tmp_path / "duetime.toml").write_text(f'[pool.wide]\nstores = {{ a = "{first.url}" }}\n')
    with serving(tmp_path, "--dev") as site:

        def act(action: str, **fields: str) -> str:
            answer = httpx.post(
                f"{site.admin}/console/do/{action}",
                data={"pool": "wide", "name": "b", "member": "b", **fields},
                headers={"origin": site.admin},
                follow_redirects=True,
                timeout=60,
            )
            return answer.text

        def shown() -> str:
            try:
                return page(site, "stores")
            except httpx.HTTPError:  # the server applies its settings
                return ""

        wrong = act("add-store", url=f"redis://user:secret@127.0.0.1:{find_free_port()}/0", name="no name")
        assert wrong.count('class="field-error"') == 1
        assert 'value="no name"' in wrong
        away = act("add-store", url=f"redis://user:secret@127.0.0.1:{find_free_port()}/0")
        assert "store cannot be opened" in away
        assert 'value="b"' in away
        assert "secret" not in away.partition("cannot be opened")[2].partition("</span>")[0]
        assert "must name a server" in act("add-store", url="sqlite:/etc/passwd")
        added = act("add-store", url=second.url)
        assert "takes no new jobs yet" in added, site.log.read_text()
        await until(lambda: str(second.port) in shown() and "Take jobs again" in shown())
        act("undrain")
        await until(lambda: ">drains<" not in shown() and ">drained, empty<" not in shown())
        assert "drain it first" in act("remove-store")
        act("drain")
        await until(lambda: "do/remove-store" in shown())
        assert "is removed in a few seconds" in act("remove-store")
        await until(lambda: "wide" in shown() and f":{second.port}/" not in shown().partition("</section>")[0])
    assert str(second.port) not in (tmp_path / "duetime.toml").read_text()
    assert "Traceback" not in site.log.read_text()


async def test_a_bridge_that_the_settings_no_longer_name_is_not_shown(site: Served) -> None:
    store = await open_store(f"sqlite://{site.log.parent}/jobs.db")
    try:
        for name, age_ms in (("now", 0), ("gone", 7_200_000)):
            read = {"system": "laravel", "read_at": int(time.time() * 1000) - age_ms, "error": "", "queues": []}
            await store.registry.put(BRIDGE, name, msgspec.json.encode(read))
        await until(lambda: "Bridge now" in page(site, "stores"))
        assert "Bridge gone" not in page(site, "stores")
        await store.registry.delete(BRIDGE, "now")
    finally:
        await store.close()


async def test_past_alerts_are_shown(site: Served) -> None:
    store = await open_store(f"sqlite://{site.log.parent}/jobs.db")
    try:
        past = [PastAlert("callbacks of <b>mail</b> fail", "try one call", 1_794_000_000, 1_794_000_090)]
        await store.registry.put(PAST, KEY, msgspec.json.encode(past))
        await until(lambda: "callbacks of &lt;b&gt;mail&lt;/b&gt; fail" in page(site, "alerts"))
        assert "1 m 30 s" in page(site, "alerts")
    finally:
        await store.close()


async def test_a_topic_whose_receiver_fails_says_so(site: Served) -> None:
    with duetime.connect(site.api) as client:
        topics = Topics(client)
        topics.add("refused", f"http://127.0.0.1:{find_free_port()}/", timeout="1s")
        for _ in range(2):  # a second job, because the first one's second try is a minute away
            topics.add_job("refused", {"a": "b"})
    address = "topic?pool=default&namespace=default&queue=refused"
    await until(lambda: "2 calls in a row have failed" in page(site, address), deadline_s=120)


def test_the_overview_shows_the_journal(site: Served) -> None:
    assert re.search(r"[\d.]+ [KMG]?i?B waiting to be written", page(site, ""))


def test_a_journal_is_behind_if_it_cannot_be_written_or_shipped() -> None:
    assert not JournalLag(0, 0, 59.0).is_behind
    assert JournalLag(0, 1, 0.0).is_behind
    assert JournalLag(2_000_000, 0, 0.0).is_behind
    assert JournalLag(0, 0, 601.0).is_behind


def test_duties_that_hang_in_any_process_are_named_once() -> None:
    states = [
        ProcessState({"default": ["reaper"]}, {}, []),
        ProcessState({"default": ["waiting", "reaper"], "wide": ["reaper"]}, {}, []),
    ]
    assert stuck_duties(states) == {"default": ["reaper", "waiting"], "wide": ["reaper"]}


def test_workers_are_shown_with_who_they_are(site: Served) -> None:
    with duetime.connect(site.api) as client:
        client.queue("worked").push("x")  # a page shows the workers of namespaces that have queues
        name = beat_name(WorkerBeat("host-<b>7", 4711, "threads", 4, "worked", 1_794_000_000))
        client.send(count("default", name, 3, life_ms=3_600_000))
    shown = page(site, "workers")
    assert "host-&lt;b&gt;7" in shown
    assert "2 / 4" in shown
    assert "4711" in shown


def test_workers_of_a_namespace_are_paused_resumed_and_restarted(site: Served) -> None:
    def act(action: str) -> str:
        address, headers = f"{site.admin}/console/do/{action}", {"origin": site.admin}
        place = {"pool": "default", "namespace": "default"}
        return httpx.post(address, data=place, headers=headers, follow_redirects=True, timeout=60).text

    with duetime.connect(site.api) as client:
        client.queue("worked").push("x")
        assert "take no new jobs" in act("pause-workers")
        act("pause-workers")  # somebody else clicked as well
        assert client.send(count("default", PAUSES)) > 0
        assert ">paused<" in page(site, "workers")
        assert "go on" in act("resume-workers")
        assert client.send(count("default", PAUSES)) <= 0
        assert ">paused<" not in page(site, "workers")
        before = client.send(count("default", RESTARTS))
        assert "exit after their jobs" in act("restart-workers")
        assert client.send(count("default", RESTARTS)) == before + 1
