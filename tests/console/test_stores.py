"""What the console says of stores, of the journal, of duties that hang and of topics whose receiver fails."""

import re
from collections.abc import Iterator

import httpx
import msgspec
import pytest

import duetime
from duetime.alerts.problems import KEY, PAST, PastAlert
from duetime.client.topics import Topics
from duetime.console.live import ProcessState
from duetime.console.meter_samples import JournalLag
from duetime.console.pages.overview import stuck_duties
from duetime.stores.open import open_store
from duetime.wire.payload import PAUSES, RESTARTS
from duetime.wire.worker_beats import WorkerBeat, beat_name
from duetime.worker.shared_counters import count
from tests.console.visible_words import english_words
from tests.plugins.ports import find_free_port
from tests.plugins.serving import Served, serving
from tests.plugins.until import until


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("pools")
    stores = ", ".join(f'{name} = "sqlite:{folder}/{name}.db"' for name in "abc")
    (folder / "duetime.toml").write_text(f'[pool.wide]\nstores = {{ {stores} }}\ndrain = ["b"]\n')
    with serving(folder, "--dev", DUETIME_CALLBACK_ALLOW="127.0.0.0/8") as served:
        yield served
    assert "Traceback" not in served.log.read_text()


def page(site: Served, path: str) -> str:
    return httpx.get(f"{site.admin}/console/{path}", timeout=60).raise_for_status().text


def test_members_of_a_group_are_shown_with_the_one_that_drains(site: Served) -> None:
    shown = page(site, "stores")
    assert "/a.db" in shown
    chinese = httpx.get(f"{site.admin}/console/stores", headers={"accept-language": "zh"}, timeout=60).text
    assert english_words(chinese, "default", "wide", "odd", "ticks", "PostgreSQL", "MySQL", "SQLite") == set()
    assert shown.count(">drains<") == 1
    assert shown.count("every commit, synchronous=FULL") == 5  # the pools default and wide, and the members of wide


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
    assert re.search(r"[\d.]+ [KMG]?i?B not yet written", page(site, ""))


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
