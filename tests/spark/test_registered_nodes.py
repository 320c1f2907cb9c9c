"""What several hosts wrote: a node that is registered and not heard is named, and nothing is pushed before that."""

import asyncio
import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from duetime.cli.pipelines.audit import verdict_text
from duetime.client import AsyncClient
from duetime.journal.registration import NODE_KIND, RegisteredNode, registered
from duetime.model.clock import SystemClock
from duetime.model.job import Event, Job, NewJob
from duetime.model.names import Queue
from duetime.spark import schedule
from duetime.spark.audit.journal import JournalIncomplete, JournalNow, JournalProblem
from duetime.spark.audit.run import Audited, ComparedStore, run_audit
from duetime.spark.ingest.about import about_events, known_nodes
from duetime.spark.ingest.run import run_ingest
from duetime.spark.ingest.transform import without_known
from duetime.spark.lake.lake import Lake, Manifest
from duetime.spark.lake.nodes import NodeState
from duetime.spark.load.batch_journal import batch_node
from duetime.spark.load.options import LoadFields, LoadOptions
from duetime.spark.load.task_push import LoadFailed
from duetime.spark.reconcile.run import run_reconcile
from duetime.spark.rounds import RoundPlan, run_round
from duetime.spark.store_view import StoreView
from duetime.stores.base import RulesChange
from duetime.stores.open import open_store
from tests.plugins.served import StartServer
from tests.spark.frames import events
from tests.spark.history import Node, Story

QUEUE = Queue("default", "orders")
HALF_DONE = "batch-default-default-b2-01M7P26GEB7S5Q579J5KP15NHC"
IDS = [f"order-{number}" for number in range(6)]


async def two_hosts(url: str, here: Path, there: Path) -> None:
    """One accepts all jobs and ends, the other one acks the first three."""
    async with AsyncClient(url, journal=str(here)) as client:
        await client.queue(QUEUE.name).bulk([NewJob(name, b"body") for name in IDS])
    async with AsyncClient(url, journal=str(there)) as client:
        await client.queue(QUEUE.name).ack(await client.queue(QUEUE.name).reserve(limit=3))


def get(url: str, ids: Sequence[str]) -> list[Job | None]:
    async def work() -> list[Job | None]:
        store = await open_store(url)
        found = list(await store.get(QUEUE, ids))
        await store.close()
        return found

    return asyncio.run(work())


def nodes(url: str) -> set[str]:
    async def work() -> set[str]:
        store = await open_store(url)
        found = set(await registered(store))
        await store.close()
        return found

    return asyncio.run(work())


def test_jobs_that_another_host_acked_are_not_pushed_again(spark: SparkSession, tmp_path: Path) -> None:
    url, here, there = f"sqlite://{tmp_path}/jobs.db", tmp_path / "journal", tmp_path / "other-host"
    asyncio.run(two_hosts(url, here, there))
    [other] = [path.name for path in there.iterdir()]
    lake, compared = Lake(spark, str(tmp_path / "lake")), ComparedStore(url, wait_s=0)

    with pytest.raises(JournalIncomplete, match=rf"{other}: entries 1 to \d+ are missing") as stopped:
        run_reconcile(lake, str(here), compared)
    assert stopped.value.fields["nodes"] == [other]
    assert get(url, IDS[:3]) == [None] * 3
    assert len(nodes(url)) == 2

    shutil.copytree(there / other, here / other)
    done = run_reconcile(lake, str(here), compared)
    assert (done.lost, done.counts) == (0, {})
    assert get(url, IDS[:3]) == [None] * 3
    # They have ended, and all that they wrote is in the lake.
    assert nodes(url) == set()


def test_a_round_forgets_the_nodes_that_have_ended_and_are_whole(spark: SparkSession, tmp_path: Path) -> None:
    """Otherwise each program that ever used the store stays in its registry. An audit by itself changes no store."""
    url, here, there = f"sqlite://{tmp_path}/jobs.db", tmp_path / "journal", tmp_path / "other-host"
    asyncio.run(two_hosts(url, here, there))
    [other] = [path.name for path in there.iterdir()]
    lake, plan = Lake(spark, str(tmp_path / "lake")), RoundPlan(str(here), ComparedStore(url, wait_s=0))
    run_audit(lake, plan.journal, plan.compared)
    assert len(nodes(url)) == 2

    assert f"gap of {other}" in run_round(lake, plan).problem
    assert nodes(url) == {other}
    shutil.copytree(there / other, here / other)
    assert run_round(lake, plan).ok
    assert nodes(url) == set()


def test_an_audit_without_a_nodes_entries_says_that_nothing_is_proved() -> None:
    problems = [JournalProblem("gap", f"web-{number}", "entries 1 to 2 are missing (2)") for number in range(7)]
    said = verdict_text(Audited("run", "folder", [], {"lost": 3}, problems))
    assert "Not proved: entries of web-0, web-1, web-2, web-3, web-4 and 2 more are missing, and jobs that they" in said
    assert "--assume-lost NODE" in said
    assert verdict_text(Audited("run", "folder", [], {"lost": 3})) == "Not sound."
    assert verdict_text(Audited("run", "folder", [], {"unanswered": 3})).startswith("Sound")


def test_a_node_that_a_wiped_store_is_told_of_during_the_audit_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """Living nodes write the records of all nodes again, within seconds; the scan may have ended before that."""
    url, journal, began = f"sqlite://{tmp_path}/jobs.db", tmp_path / "journal", SystemClock().now_ms() - 60_000
    node = Node(journal, "accepted")
    Story(node.write, "acked-elsewhere", began, began).accepted()
    node.close(began + 1)

    def tell(step: str) -> None:
        if step == "reading the journal":
            asyncio.run(remember(url, "killed", RegisteredNode(at=began)))

    with pytest.raises(JournalIncomplete, match="killed: registered, and nothing of it has arrived"):
        run_reconcile(Lake(spark, str(tmp_path / "lake")), str(journal), ComparedStore(url, wait_s=0), on_step=tell)


async def remember(url: str, node: str, record: RegisteredNode) -> None:
    """Write a node's record as a living node does into a store that was wiped."""
    store = await open_store(url)
    await store.registry.put(NODE_KIND, node, msgspec.json.encode(record), if_version=0)
    await store.close()


def test_a_batch_that_broke_off_is_named_until_it_is_done(spark: SparkSession, redis_url: str, tmp_path: Path) -> None:
    """It registered before its first push, and what it pushed is in no segment yet."""
    journal, lake = str(tmp_path / "journal"), Lake(spark, str(tmp_path / "lake"))
    rows = spark.range(0, 600, 1, 1).selectExpr("concat('order-', id) AS id", "'body' AS body")
    load: LoadFields = {"url": redis_url, "queue": QUEUE.name, "batch": "b1", "journal": journal}
    allow(redis_url, 550)
    with pytest.raises(LoadFailed, match="it holds its maximum of 550 jobs"):
        schedule(rows, lake=lake.folder, **load)
    with pytest.raises(JournalIncomplete, match="registered, and nothing of it has arrived") as stopped:
        run_reconcile(lake, journal, ComparedStore(redis_url, wait_s=0))
    [node] = stopped.value.fields["nodes"]
    assert node.startswith("batch-default-default-b1-")

    allow(redis_url, 0)
    done = schedule(rows, lake=lake.folder, **load)
    assert (done.accepted, done.repeated) == (600, 500)
    assert run_reconcile(lake, journal, ComparedStore(redis_url, wait_s=0)).counts == {}


def allow(url: str, jobs: int) -> None:
    """The queue takes so many jobs, 0 for any number."""

    async def work() -> None:
        store = await open_store(url)
        await store.configure(QUEUE, RulesChange(max_jobs=jobs))
        await store.close()

    asyncio.run(work())


def test_nodes_are_known_through_a_server(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server("--dev", DUETIME_INSTANCE="web", DUETIME_JOURNAL=str(tmp_path / "journal"))
    with closing(StoreView(server.api)) as view:
        [(node, record)] = view.registered().items()
    assert (tmp_path / "journal" / node).is_dir()
    assert (node.startswith("web-"), record.last, record.abandoned) == (True, None, False)
    assert 0 < record.at <= SystemClock().now_ms()


def problems(name: str, record: RegisteredNode) -> list[tuple[str, str]]:
    """What a registered node owes to a reader who scanned the store at 100 and has read three nodes."""
    read = {
        "ended": NodeState([(1, 9)], {"default": 50}, closed=True),
        "beats": NodeState([(1, 9)], {"default": 101, "east": 40}),
        "behind": NodeState([(1, 4)], {"default": 101}),
        HALF_DONE: NodeState([(1, 4)]),
    }
    late: Any = None
    now = JournalNow(Manifest(), late, 0, read, [], registered={name: record})
    found = now.problems("default", 100)
    assert [one.node for one in found] == now.awaited("default", 100)
    return [(one.kind, one.detail) for one in found]


def test_each_registered_node_is_heard_past_the_scan_or_named() -> None:
    nothing = [("silent", "registered, and nothing of it has arrived")]
    assert problems("killed", RegisteredNode(at=90)) == nothing
    assert problems("began-after-the-scan", RegisteredNode(at=101)) == []
    assert problems("had-nothing-to-say", RegisteredNode(at=90, last=0)) == []
    assert problems("not-shipped-yet", RegisteredNode(at=90, last=3)) == [("gap", "entries 1 to 3 are missing (3)")]
    assert problems("ended", RegisteredNode(at=10)) == []
    assert problems("beats", RegisteredNode(at=10)) == []
    without = RegisteredNode(at=90, host="web1", pid=7, journal=False, seen_at=2**40)
    [(kind, detail)] = problems("without-journal", without)
    assert (kind, "process 7 on web1 has no journal" in detail) == ("silent", True)
    assert problems("behind", RegisteredNode(at=10, last=6)) == [("gap", "entries 5 to 6 are missing (2)")]


def test_a_batch_that_has_not_ended_is_named_with_what_to_do() -> None:
    """Nobody but the same schedule can write its entries."""
    todo = "; it is a batch that has not ended: if it broke off, run the same schedule again, or say --assume-lost"
    begun = batch_node(LoadOptions("redis://localhost", batch="b1"))
    assert problems(begun, RegisteredNode(at=90)) == [("silent", f"registered, and nothing of it has arrived{todo}")]
    some = [("silent", f"only some of its entries have arrived{todo}")]
    assert problems(HALF_DONE, RegisteredNode(at=10)) == some
    [(_, detail)] = problems("batch-1", RegisteredNode(at=90, host="host", folder="/journal"))
    assert detail == "registered, and nothing of it has arrived; it writes to /journal on host", "a server's name"


def test_ten_thousand_nodes_are_no_condition_of_ten_thousand_parts(spark: SparkSession) -> None:
    """Each of them has two ranges, and what is new of one of them is found."""
    known = {f"node-{number}": NodeState([(1, 2), (5, 6)]) for number in range(10_000)}
    places = [*(("node-9999", seq) for seq in range(1, 8)), ("other", 1)]
    late = events(spark, *({"event": "acked", "node": node, "seq": seq} for node, seq in places))
    left = without_known(late, known).select("node", "seq").collect()
    assert {(row["node"], row["seq"]) for row in left} == {
        ("node-9999", 3), ("node-9999", 4), ("node-9999", 7), ("other", 1),
    }  # fmt: skip


def test_nodes_that_have_ended_leave_the_manifest_and_are_known(spark: SparkSession, tmp_path: Path) -> None:
    journal, lake = tmp_path / "journal", Lake(spark, str(tmp_path / "lake"))
    for number in range(3):
        Node(journal, f"ended-{number}").close(1_790_000_000_000)
    alive = Node(journal, "alive")
    alive.write(Event.HEARTBEAT, 1_790_000_000_000)
    alive.seal()
    run_ingest(lake, str(journal))
    about = about_events(lake.events.manifest())
    assert (set(about.nodes), about.events) == ({"alive"}, 4)
    assert set(known_nodes(lake, about)) == {"ended-0", "ended-1", "ended-2", "alive"}

    # A copy of a segment that came in long ago adds nothing.
    restored = journal / "restored"
    restored.mkdir()
    (segment,) = (journal / "ended-1").glob("*.journal")
    shutil.copy(segment, restored)
    assert run_ingest(lake, str(journal)).repeated == 1
    assert lake.events.read().count() == 4
