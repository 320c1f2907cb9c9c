"""A disk that fills up: pushes are refused in time, and what is there is delivered, acked and on record to the end."""

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from duetime.engine import Engine
from duetime.journal import writer
from duetime.journal.events import Entry
from duetime.journal.journal import Journal
from duetime.journal.options import JournalOptions
from duetime.journal.reader import read_journal
from duetime.journal.recorder import open_journal_recorder
from duetime.model.errors import JournalFull
from duetime.model.job import Event, NewJob
from duetime.stores.memory.store import MemoryStore
from tests.plugins.until import until
from tests.simulation.engine_room import QUEUE

MIB = 1_048_576


class Disk(NamedTuple):
    """A folder in which about a MiB may be written before the reserve is touched."""

    folder: Path
    reserve: int


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """A small file system of its own for root; for others the one that there is, nearly all of it reserved."""
    monkeypatch.setattr(writer, "CHECK_DISK_BYTES", 20_000)
    if os.geteuid() == 0:
        mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(tmp_path)]
        if subprocess.run(mount, capture_output=True, check=False).returncode == 0:
            yield Disk(tmp_path, MIB)
            subprocess.run(["umount", str(tmp_path)], check=True)
            return
    stat = os.statvfs(tmp_path)
    yield Disk(tmp_path, stat.f_bavail * stat.f_frsize - MIB)


@asynccontextmanager
async def journaled(disk: Disk) -> AsyncIterator[Engine]:
    store = MemoryStore()
    async with (
        Journal(JournalOptions(disk.folder / "journal", reserve=disk.reserve)) as journal,
        Engine(store, recorders=await open_journal_recorder(store, journal, "default")) as engine,
    ):
        yield engine


def counted(disk: Disk, event: Event) -> set[str]:
    items = list(read_journal(disk.folder / "journal"))
    assert all(isinstance(item, Entry) for item in items)
    return {item.id for item in items if isinstance(item, Entry) and item.event is event}


async def test_a_disk_that_fills_up_refuses_pushes_and_nothing_else(disk: Disk) -> None:
    pushed: list[str] = []

    async def push_until_refused(engine: Engine) -> None:
        for number in range(1000):
            await engine.push(QUEUE, [NewJob(f"j{number}", b"x" * 10_000)])
            pushed.append(f"j{number}")

    async with journaled(disk) as engine:
        with pytest.raises(JournalFull):
            await push_until_refused(engine)
        assert len(pushed) > 50
        leases = [one.lease for _ in pushed for one in await engine.reserve([QUEUE])]
        await engine.ack(leases)
        with pytest.raises(JournalFull):
            await engine.push(QUEUE, [NewJob("more", b"")])
    assert counted(disk, Event.ACCEPTED) == set(pushed)
    assert counted(disk, Event.DELIVERED) == counted(disk, Event.ACKED) == set(pushed)


async def test_pushes_go_on_when_there_is_room_again(disk: Disk) -> None:
    filler = disk.folder / "filler"
    filler.write_bytes(os.urandom(MIB + MIB // 2) if disk.reserve == MIB else os.urandom(4 * MIB))
    async with journaled(disk) as engine:

        async def push() -> bool:
            try:
                await engine.push(QUEUE, [NewJob("a", b"")])
            except JournalFull:
                return False
            return True

        assert not await push()
        filler.unlink()
        await until(push)
    assert counted(disk, Event.ACCEPTED) == {"a"}
