"""A server that is killed under load: everything that it answered is in its journal, and its successor closes that."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from duetime.journal.events import Entry
from duetime.journal.reader import Damage, Gap, read_journal
from duetime.journal.segments import nodes
from duetime.model.job import Event
from tests.plugins.processes import guard, release
from tests.plugins.until import until

PRODUCERS = 16
CONSUMERS = 4
DELAYS = ["1h", 0]
Start = Callable[..., "Server"]


class Server:
    """A running `duetime serve` with a SQLite file and its journal in one folder."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.journal = folder / "journal"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("DUETIME_")}
        self.process = subprocess.Popen(
            [Path(sys.executable).with_name("duetime"), "serve", "--dev", "--port", "0", "--admin-port", "0"],
            cwd=folder,
            env=inherited | {"DUETIME_STORE": f"sqlite://{folder}/jobs.db"} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        guard(self.process.pid)
        assert self.process.stdout
        facts: dict[str, str] = {}
        for line in self.process.stdout:
            label, _, value = line.strip().partition(" ")
            facts[label] = value.strip()
            if label == "stop":
                break
        self.url = f"{facts['API']}/v1/queues/shop/mail"
        self.several = f"{facts['API']}/v1/namespaces/shop/reserve"

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        self.process.communicate(timeout=90)
        release(self.process.pid)
        return self.process.returncode


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Server] = []

    def start(**environment: str) -> Server:
        started.append(Server(tmp_path, **environment))
        return started[-1]

    yield start
    for server in started:
        if server.process.poll() is None:
            server.end(signal.SIGKILL)


async def produce(server: Server, name: int, answered: set[str]) -> None:
    """Push until the server is gone; only what it said yes to counts."""
    async with httpx.AsyncClient(timeout=90) as client:
        for number in range(1_000_000):
            job_id = f"{name}-{number}"
            try:
                reply = await client.post(
                    f"{server.url}/jobs", json={"id": job_id, "body": "x" * 50, "delay": DELAYS[number % 2]}
                )
            except httpx.TransportError:
                return
            assert reply.status_code < 300, reply.text
            answered.add(job_id)


async def consume(server: Server, acked: set[str]) -> None:
    """Wait on several queues and finish jobs until the server is gone; only what it said yes to counts."""
    async with httpx.AsyncClient(timeout=90) as client:
        ask = {"queues": ["empty", "mail", "idle"], "limit": 5, "ttr": "1h", "wait": "5s"}
        while True:
            try:
                found = (await client.post(server.several, json=ask)).json()["deliveries"]
                leases = [one["lease"] for one in found]
                if not leases:
                    continue
                reply = await client.post(f"{server.url}/ack", json={"leases": leases})
            except httpx.TransportError:
                return
            assert reply.status_code == 200, reply.text
            acked.update(lease["id"] for lease in leases)


def read(journal: Path) -> tuple[list[Entry], list[Damage | Gap]]:
    items = list(read_journal(journal))
    return (
        [item for item in items if isinstance(item, Entry)],
        [item for item in items if not isinstance(item, Entry)],
    )


@pytest.mark.store_kind("sqlite")
@pytest.mark.parametrize("mode", ["always", "interval"])
async def test_every_answered_push_and_ack_is_in_the_journal_of_a_killed_server(
    start: Start, scale: int, mode: str
) -> None:
    server = start(DUETIME_JOURNAL_FSYNC=mode, DUETIME_JOURNAL_SEGMENT_SIZE="20KiB")
    answered, acked = set[str](), set[str]()
    clients = [asyncio.create_task(produce(server, name, answered)) for name in range(PRODUCERS)]
    clients += [asyncio.create_task(consume(server, acked)) for _ in range(CONSUMERS)]
    await until(lambda: len(answered) >= 200 * scale and len(acked) >= 20 * scale)
    server.process.send_signal(signal.SIGKILL)
    await asyncio.gather(*clients)
    server.end(signal.SIGKILL)

    entries, broken = read(server.journal)
    accepted = {entry.id for entry in entries if entry.event is Event.ACCEPTED}
    assert answered - accepted == set()
    assert acked - {entry.id for entry in entries if entry.event is Event.ACKED} == set()
    assert len(accepted) - len(answered) <= PRODUCERS, "those whose answers were on their way"
    assert not any(isinstance(one, Gap) for one in broken)

    [dead] = nodes(server.journal)
    successor = start()
    await until(lambda: not (dead / "lock").exists())
    assert successor.end(signal.SIGTERM) == 0
    entries, broken = read(server.journal)
    assert broken == []
    last = {entry.node: entry for entry in entries}
    assert {node: entry.event for node, entry in last.items()} == dict.fromkeys(last, Event.CLOSED)
    assert (len(last), last[dead.name].reason) == (2, "successor")
    assert answered - {entry.id for entry in entries if entry.event is Event.ACCEPTED} == set()
