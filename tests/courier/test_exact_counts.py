"""kill -9 of a server with callbacks and leases under way: afterwards all counts are what the journal says, exactly.

The journal tells an event after the store has done it, so a process that is killed between the two leaves the store one
event ahead. The server here is stopped (SIGSTOP) at a moment when the journal has caught up, with calls and
leases open, and is killed there; `test_crash.py` kills at any moment and holds the counts against the jobs themselves.
"""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest

from duetime.journal.events import Entry
from duetime.journal.reader import read_journal
from duetime.model.job import Event
from duetime.model.names import Queue
from duetime.stores.base import Store
from duetime.stores.open import open_store
from tests.courier.receiver import OK, Call, Receiver, Says
from tests.e2e.shell import Shell
from tests.plugins.served import ServedProcess, StartServer
from tests.plugins.serving import read_samples
from tests.plugins.until import until

JOBS_AT_SCALE_1 = 60
PATIENT = httpx.Timeout(30, pool=None)
"""Thousands of posts share the client's connections: each answers within 30 s, but its turn may come later."""
FAILING = 7
MAIL, WORK = Queue("shop", "mail"), Queue("shop", "work")
EVENTS = {
    Event.ACCEPTED: "accepted",
    Event.REPLACED: "accepted",
    Event.DELIVERED: "delivered",
    Event.ACKED: "acked",
    Event.RELEASED: "released",
    Event.LEASE_EXPIRED: "lapsed",
    Event.DEAD: "dead",
    Event.CANCELLED: "cancelled",
    Event.EXPIRED: "expired",
    Event.RESPAWNED: "respawned",
}
METRICS = {"accepted": "pushed"}


def journaled(folder: Path, queue: Queue) -> dict[str, int]:
    """How often each thing happened, by the journal; each once per job, incarnation and delivery."""
    said = [
        (EVENTS[entry.event], entry.id, entry.born, entry.attempt, entry.ts)
        for entry in read_journal(folder)
        if isinstance(entry, Entry) and (entry.namespace, entry.queue) == tuple(queue) and entry.event in EVENTS
    ]
    assert len(said) == len(set(said)), "an event stands in the journal twice"
    counted = Counter(what for what, *_ in said)
    return {what: counted[what] for what in sorted(set(EVENTS.values()))}


async def stored(store: Store, queue: Queue) -> dict[str, int]:
    [totals] = await store.totals([queue])
    return {what: getattr(totals.running, what) for what in sorted(set(EVENTS.values()))}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["sqlite", "redis", "postgres", "mysql"])
async def test_counts_and_metrics_are_the_journals_after_a_kill(
    kind: str,
    start_server: StartServer,
    receiver: Receiver,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    scale: int,
) -> None:
    url = f"sqlite://{tmp_path}/jobs.db" if kind == "sqlite" else request.getfixturevalue(f"{kind}_url")
    workers = "1" if kind == "sqlite" else "2"
    journal, count = tmp_path / "journal", JOBS_AT_SCALE_1 * scale
    dead, seen = asyncio.Event(), set[str]()

    def answer(call: Call) -> Says:
        """Some jobs fail once; half way through the receiver says nothing until the server is dead."""
        number = call.fields["n"]
        if len(seen) >= count // 2:
            return Says(hold=dead)
        seen.add(number)
        failed = int(number) % FAILING == 0 and call.headers["duetime-attempt"] == "1"
        return Says(b"no", 500) if failed else OK

    def start() -> ServedProcess:
        return start_server(
            "--workers", workers, "--store", url,
            DUETIME_JOURNAL=str(journal), DUETIME_CALLBACK_ALLOW="127.0.0.0/8", DUETIME_CALLBACK_LEASE="3s",
        )  # fmt: skip

    receiver.answer = answer
    store = await open_store(url)  # its tables are there before the server looks for them
    server = await asyncio.to_thread(start)
    async with httpx.AsyncClient(base_url=server.api, timeout=PATIENT) as http:
        held, _ = await asyncio.gather(consume_some(http, count), callbacks(http, receiver, count))
    await until(lambda: len(receiver.calls) > count // 2 + 10)
    await until(lambda: lapsed(store))
    pids = (*server.workers(), server.process.pid)
    await until(lambda: stopped_in_step(pids, journal, store), every_s=0.1, deadline_s=40)
    before = {queue: await stored(store, queue) for queue in (MAIL, WORK)}

    send(signal.SIGKILL, pids)
    await asyncio.to_thread(server.wait)
    dead.set()
    seen.clear()  # the receiver answers again, and some first attempts fail again
    again = await asyncio.to_thread(start)
    async with httpx.AsyncClient(base_url=again.api, timeout=PATIENT) as http:
        await post(http, "/v1/queues/shop/work/ack", leases=held)
        await finish(http, store)
    await until(lambda: caught_up(journal, store), every_s=0.1, deadline_s=40)

    truth = {queue: journaled(journal, queue) for queue in (MAIL, WORK)}
    assert before[MAIL]["accepted"] == truth[MAIL]["accepted"] == truth[MAIL]["acked"] == count
    assert before[MAIL]["acked"] < count
    assert all(truth[queue][what] > 0 for queue in truth for what in ("released", "lapsed", "delivered"))
    assert truth[WORK]["cancelled"] == truth[WORK]["dead"] == 2
    samples = read_samples((await asyncio.to_thread(httpx.get, f"{again.admin}/metrics")).text)
    for queue, counted in truth.items():
        labels = frozenset({("pool", "default"), ("namespace", queue.namespace), ("queue", queue.name)})
        shown = {what: samples[f"duetime_jobs_{METRICS.get(what, what)}_total", labels] for what in counted}
        assert shown == counted
    shell = Shell(again.api, tmp_path)
    [counters] = await asyncio.to_thread(shell.json, "topic", "counters", "--namespace", "shop")
    mail = truth[MAIL]
    failed = mail["released"] + mail["dead"]
    assert counters["totals"] == {"written": count, "notified": count, "deleted": 0, "failed": failed}
    assert counters["counters"]["1:total_notfiy"] == mail["acked"]
    await store.close()
    assert (await asyncio.to_thread(again.stop))[0] == 0


async def lapsed(store: Store) -> bool:
    return (await stored(store, WORK))["lapsed"] == 3


def send(what: signal.Signals, pids: Iterable[int]) -> None:
    for pid in pids:
        os.kill(pid, what)


async def stopped_in_step(pids: Iterable[int], journal: Path, store: Store) -> bool:
    """Stops the processes; lets them go on unless the journal and the store say the same, and still do a moment later:
    a database may be at work on what it was sent before.
    """
    send(signal.SIGSTOP, pids)
    if await caught_up(journal, store):
        await asyncio.sleep(0.3)
        if await caught_up(journal, store):
            return True
    send(signal.SIGCONT, pids)
    return False


async def caught_up(journal: Path, store: Store) -> bool:
    said = [await asyncio.to_thread(journaled, journal, queue) for queue in (MAIL, WORK)]
    return said == [await stored(store, queue) for queue in (MAIL, WORK)]


async def post(http: httpx.AsyncClient, path: str, **message: Any) -> Any:
    reply = await http.post(path, json=message)
    assert reply.status_code in (200, 201), reply.text
    return reply.json()


async def callbacks(http: httpx.AsyncClient, receiver: Receiver, count: int) -> None:
    topics = "/v1/namespaces/shop/topics"
    callback = {"callback": f"{receiver.url}/mail", "method": "POST", "timeout": "60s"}
    await post(http, topics, topic="mail", success="2xx", schedule="50ms", in_flight=20, **callback)
    for at in range(0, count, 50):
        some = range(at, min(at + 50, count))
        await asyncio.gather(*(post(http, f"{topics}/mail/jobs", id=str(n), body={"n": str(n)}) for n in some))


async def consume_some(http: httpx.AsyncClient, count: int) -> list[Any]:
    """Acks, releases, kills, cancels and abandons some jobs; answers leases that are to outlive the server."""
    jobs = "/v1/queues/shop/work"
    cancelled = [str(count - 1), str(count - 2)]
    delays = {str(number): "1h" if str(number) in cancelled else "0s" for number in range(count)}
    await asyncio.gather(*(post(http, f"{jobs}/jobs", id=job, body="x", delay=delay) for job, delay in delays.items()))

    async def reserve(limit: int, ttr: str) -> list[Any]:
        found = await post(http, f"{jobs}/reserve", limit=limit, ttr=ttr)
        return [delivery["lease"] for delivery in found["deliveries"]]

    leases = await reserve(20, "60s")
    assert len(await reserve(3, "1ms")) == 3
    await post(http, f"{jobs}/ack", leases=leases[:10])
    await post(http, f"{jobs}/release", lease=leases[10])
    for lease in leases[11:13]:
        await post(http, f"{jobs}/kill", lease=lease)
    await post(http, f"{jobs}/cancel", ids=cancelled)
    return leases[13:]


async def finish(http: httpx.AsyncClient, store: Store) -> None:
    async def drained() -> bool:
        found = (await post(http, "/v1/queues/shop/work/reserve", limit=100))["deliveries"]
        if found:
            await post(http, "/v1/queues/shop/work/ack", leases=[delivery["lease"] for delivery in found])
        left = await store.counts([MAIL, WORK])
        return all(counts.delayed + counts.ready + counts.leased == 0 for counts in left)

    await until(drained, every_s=0.05, deadline_s=40)
