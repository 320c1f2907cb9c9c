"""`move`, `backup` and `restore` as people run them, beside live producers and consumers, through kill -9."""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import duetime
from duetime.journal.events import Entry
from duetime.journal.reader import read_journal
from duetime.model.job import Event
from tests.e2e.shell import Shell, program
from tests.plugins.processes import guard, release

JOBS = 300
QUEUES = ("mail", "sms")

PRODUCER = """
import sys, itertools
import duetime

urls, journal, name = sys.argv[1].split(), sys.argv[2], sys.argv[3]
with duetime.connect(urls[0], journal=journal) as here, duetime.connect(urls[1], journal=journal) as there:
    for number in itertools.count():
        client = (here, there)[number % 2]
        job_id = f"{name}-{number}"
        client.queue(("mail", "sms")[number % 3 % 2]).push(job_id, id=job_id, delay=f"{number % 5 * 100}ms")
        if number == 20:
            print("began", flush=True)
        if sys.stdin in __import__("select").select([sys.stdin], [], [], 0.005)[0]:
            print(number + 1, flush=True)
            break
"""


def start(*command: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    guard(process.pid)
    return process


def stop(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate("stop\n", timeout=90)
    release(process.pid)
    return out


async def drain(url: str, journal: str) -> int:
    """Take and ack everything that is due in a store."""
    done = 0
    async with duetime.connect_async(url, journal=journal) as client:
        while True:
            found = 0
            for name in QUEUES:
                deliveries = await client.reserve([name], limit=500)
                if deliveries:
                    await client.queue(name).ack(deliveries)
                    found += len(deliveries)
            if not found:
                return done
            done += found


@pytest.mark.store_kind("redis")
def test_there_and_back_while_producers_push_and_movers_are_killed(
    shell: Shell, tmp_path: Path, redis_url: str, postgres_url: str, scale: int
) -> None:
    sqlite, journal = shell.url, str(tmp_path / "journal")
    legs = [(sqlite, redis_url), (redis_url, postgres_url), (postgres_url, sqlite)]
    with duetime.connect(sqlite, journal=journal) as client:
        for name in QUEUES:
            client.queue(name).bulk([f"first-{name}-{n}" for n in range(JOBS * scale)], delay="1s")
    pushed = len(QUEUES) * JOBS * scale
    for source, target in legs:
        producer = start(sys.executable, "-c", PRODUCER, f"{source} {target}", journal, f"from-{source[:5]}")
        assert producer.stdout is not None
        assert producer.stdout.readline() == "began\n"
        killed = start(*program(), "move", "--from", source, "--to", target, "--json")
        try:
            killed.wait(timeout=1.5)
        except subprocess.TimeoutExpired:
            killed.send_signal(signal.SIGKILL)
        killed.communicate(timeout=60)
        release(killed.pid)
        asyncio.run(drain(target, journal))
        shell.run("move", "--from", source, "--to", target)
        pushed += int(stop(producer).strip())
        done = shell.ok("move", "--from", source, "--to", target, "--json").documents[-1]
        assert (done["complete"], done["left"], done["problems"]) == (True, 0, [])
    assert asyncio.run(settle(sqlite, journal)) == 0

    lives: dict[tuple[str, int], Counter[str]] = {}
    early: list[str] = []
    attempts: Counter[tuple[str, int, int]] = Counter()
    for entry in read_journal(Path(journal)):
        if isinstance(entry, Entry) and entry.id:
            lives.setdefault((entry.id, entry.born), Counter())[entry.event] += 1
            if entry.event is Event.DELIVERED:
                attempts[entry.id, entry.born, entry.attempt] += 1
                early += [entry.id] if entry.ts < entry.due_at else []
    assert early == []
    assert len(lives) == pushed
    assert {tuple(sorted(one.items())) for one in lives.values()} == {(("accepted", 1), ("acked", 1), ("delivered", 1))}
    assert max(attempts.values()) == 1
    if scale > 1:
        audited = shell.ok("pipeline", "audit", "--journal", journal, "--lake", str(tmp_path / "lake"), "--json")
        assert (audited.documents[-1]["sound"], audited.documents[-1]["law"]["accepted"]) == (True, pushed)


async def settle(url: str, journal: str) -> int:
    """Wait until everything was due and is acked; answers what is left."""
    left = 1
    for _ in range(600):
        await drain(url, journal)
        async with duetime.connect_async(url, journal=journal) as client:
            left = sum([(await client.queue(name).counts()).total for name in QUEUES])
        if not left:
            break
        await asyncio.sleep(0.1)
    return left


def test_a_dry_run_makes_nothing(shell: Shell, tmp_path: Path) -> None:
    shell.ok("push", "mail", "x", "--delay", "1h")
    target = f"sqlite://{tmp_path}/new.db"
    ran = shell.ok("move", "--from", shell.url, "--to", target, "--dry-run")
    assert "1 delayed" in ran.out
    assert not (tmp_path / "new.db").exists()
    assert shell.run("move", "--from", "http://127.0.0.1:1", "--to", target).code == 2


def test_a_dry_run_finds_no_skew_between_stores_of_one_clock(shell: Shell, tmp_path: Path) -> None:
    urls = [f"sqlite://{tmp_path}/{name}.db" for name in ("here", "there")]
    for url in urls:
        shell.ok("push", "mail", "x", "--url", url)

    [*_, sums] = shell.json("move", "--from", urls[0], "--to", urls[1], "--dry-run")

    assert sums["skew_ms"] == 0


def test_the_error_says_why_a_backup_cannot_be_written(shell: Shell, tmp_path: Path) -> None:
    shell.ok("push", "mail", "x")

    ran = shell.run("backup", str(tmp_path / "no such folder" / "jobs.backup"))

    assert ran.code == 3
    assert ran.err.startswith(f"duetime: cannot write {tmp_path}/no such folder/jobs.backup: No such file")


def test_a_backup_to_a_full_disk_fails_with_the_reason(shell: Shell, tmp_path: Path) -> None:
    with duetime.connect(shell.url) as client:
        client.queue("mail").push(os.urandom(1_000_000))
    limit = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000)); "
    run = "from duetime.cli.main import main; sys.argv = ['duetime', *sys.argv[1:]]; main()"

    ran = subprocess.run(
        [sys.executable, "-c", limit + run, "backup", str(tmp_path / "jobs.backup"), "--url", shell.url],
        env=shell.environment(),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )

    assert ran.returncode == 3, ran.stderr
    assert ran.stderr.startswith(f"duetime: cannot write {tmp_path}/jobs.backup: File too large")


def test_a_backup_is_made_checked_and_restored(shell: Shell, tmp_path: Path) -> None:
    shell.ok("push", "mail", "x", "--delay", "1h", "--id", "a")
    saved = shell.ok("backup", "jobs.backup", "--json").document
    assert (saved["jobs"], saved["queues"]) == (1, 1)
    assert shell.ok("restore", "jobs.backup", "--check", "--json").document["complete"]
    assert shell.run("backup", "jobs.backup").code == 1
    target = f"sqlite://{tmp_path}/new.db"
    shell.ok("restore", "jobs.backup", "--url", target)
    assert shell.ok("get", "mail", "a", "--body", "--url", target).out.strip() == "x"
    assert shell.run("restore", "jobs.backup", "--url", target).code == 1
    (tmp_path / "jobs.backup").write_bytes(b"damaged")
    assert shell.run("restore", "jobs.backup", "--check").code == 2


def test_the_variables_of_kubernetes_do_no_harm(shell: Shell) -> None:
    """A Service called duetime makes Kubernetes set these in every container of its namespace."""
    kubernetes = {
        "DUETIME_SERVICE_HOST": "10.0.0.1",
        "DUETIME_SERVICE_PORT": "7777",
        "DUETIME_SERVICE_PORT_HTTP": "7777",
        "DUETIME_PORT": "tcp://10.0.0.1:7777",
        "DUETIME_PORT_7777_TCP": "tcp://10.0.0.1:7777",
        "DUETIME_PORT_7777_TCP_PROTO": "tcp",
        "DUETIME_PORT_7777_TCP_PORT": "7777",
        "DUETIME_PORT_7777_TCP_ADDR": "10.0.0.1",
    }
    shell.ok("push", "mail", "x", **kubernetes)
    settings = shell.ok("config", "--json", **kubernetes).documents[0]["settings"]
    assert (settings["port"]["value"], settings["port"]["source"]) == ("7777", "default")
    assert shell.run("config", DUETIME_PORT="seventy").code == 2
    assert shell.run("config", DUETIME_STOER="x").code == 2
