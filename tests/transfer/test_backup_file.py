"""Backup and restore: one file holds everything, is checked before it is used, and overwrites nothing."""

import asyncio
import gzip
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from duetime.model.errors import Conflict, InvalidRequest, StoreUnavailable
from duetime.model.job import IfExists, NewJob, State
from duetime.model.names import Queue
from duetime.stores.base import Ask, Page, Push, Store
from duetime.stores.finishes import Finish
from duetime.stores.forwarding import ForwardingStore
from duetime.stores.memory.store import MemoryStore
from duetime.stores.open import open_store
from duetime.transfer.backup_file import check_backup, restore_backup, write_backup
from tests.faults.store_faults import FaultyStore
from tests.transfer.test_store_move import HOUR, JOIN, QUEUE, everything, fill, finish_one


@pytest.fixture
async def saved(tmp_path: Path) -> tuple[MemoryStore, Path]:
    store, path = MemoryStore(), tmp_path / "jobs.backup"
    await fill(store)
    await write_backup(store, path)
    return store, path


async def test_a_backup_of_one_store_is_restored_into_another_kind(
    saved: tuple[MemoryStore, Path], redis_url: str
) -> None:
    store, path = saved
    assert path.stat().st_mode & 0o777 == 0o600
    target = await open_store(redis_url)
    try:
        await restore_backup(target, path, check_backup(path))
        assert await everything(target) == await everything(store)
        assert list(await target.check()) == []
        with pytest.raises(Conflict, match="must be empty"):
            await restore_backup(target, path, check_backup(path))
    finally:
        await target.close()


async def test_a_file_that_exists_stays(saved: tuple[MemoryStore, Path]) -> None:
    store, path = saved
    before = path.read_bytes()
    with pytest.raises(Conflict, match="the file exists"):
        await write_backup(store, path)
    assert path.read_bytes() == before
    assert [one.name for one in path.parent.iterdir()] == [path.name]


async def test_every_cut_and_every_changed_byte_is_found(saved: tuple[MemoryStore, Path], tmp_path: Path) -> None:
    _, path = saved
    whole, text = path.read_bytes(), gzip.decompress(path.read_bytes())
    bad = tmp_path / "bad"
    lines = text.splitlines(keepends=True)
    changes = {
        "cut": whole[: len(whole) // 2],
        "a byte": whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:],
        "a line less": gzip.compress(b"".join(lines[:5] + lines[6:])),
        "another body": gzip.compress(text.replace(b'"due_at":', b'"due_at":1', 1)),
        "no end": gzip.compress(b"".join(lines[:-1])),
        "more": gzip.compress(text + lines[3]),
        "something else": b"hello",
        "empty": b"",
    }
    for name, content in changes.items():
        bad.write_bytes(content)
        with pytest.raises(InvalidRequest):
            check_backup(bad)
        assert name
    with pytest.raises(InvalidRequest, match="there is no file"):
        check_backup(tmp_path / "absent")


async def test_a_restore_that_was_interrupted_goes_on(saved: tuple[MemoryStore, Path]) -> None:
    store, path = saved
    inner = MemoryStore()
    target = FaultyStore(inner)
    target.down_after(3, "push")
    with pytest.raises(StoreUnavailable):
        await restore_backup(target, path, check_backup(path))
    target.heal()
    await restore_backup(target, path, check_backup(path))
    assert await everything(inner) == await everything(store)


class OneChange(ForwardingStore):
    """A store that somebody changes once, after a page of jobs in a state was read."""

    def __init__(self, inner: Store, change: Callable[[], Awaitable[object]], after: State) -> None:
        super().__init__(inner)
        self._changes, self._after = [change], after

    async def list_jobs(self, queue: Queue, state: State, *, cursor: str | None = None, limit: int = 100) -> Page:
        page = await super().list_jobs(queue, state, cursor=cursor, limit=limit)
        if self._changes and state is self._after:
            await self._changes.pop()()
        return page


@pytest.mark.parametrize("how", ["replaced", "acked and pushed again"])
async def test_a_job_that_gets_another_life_during_the_backup_is_restored_in_its_last(tmp_path: Path, how: str) -> None:
    store, other, path = MemoryStore(), MemoryStore(), tmp_path / "b"
    delay_ms, after = (HOUR, State.DELAYED) if how == "replaced" else (0, State.READY)
    await store.push(QUEUE, [Push([NewJob("a", b"first", delay_ms=delay_ms), NewJob("b", b"x", delay_ms=HOUR)])])

    async def change() -> None:
        for delivery in (await store.reserve(QUEUE, [Ask(1, HOUR)])).deliveries[0]:
            await store.ack(QUEUE, [delivery.lease])
        await store.push(QUEUE, [Push([NewJob("a", b"second", delay_ms=HOUR)], IfExists.REPLACE)])

    await write_backup(OneChange(store, change, after), path)
    await restore_backup(other, path, check_backup(path))
    assert await everything(other) == await everything(store)
    assert list(await other.check()) == []


@pytest.mark.parametrize("after", [State.DELAYED, State.READY])
@pytest.mark.parametrize("more", [1, 2])
async def test_what_follows_a_group_that_goes_on_during_the_backup_is_never_lost(
    tmp_path: Path, after: State, more: int
) -> None:
    """One member of three was done before; one or two are done while the jobs are read."""
    store, other, path = MemoryStore(), MemoryStore(), tmp_path / "b"
    await store.push(QUEUE, [Push([NewJob(f"g~>{number}", b"x") for number in range(3)])])
    await finish_one(store)

    async def change() -> None:
        for _ in range(more):
            await finish_one(store)

    await write_backup(OneChange(store, change, after), path)
    await restore_backup(other, path, check_backup(path))
    seen: set[str] = set()
    while deliveries := (await other.reserve(QUEUE, [Ask(1, HOUR)])).deliveries[0]:
        seen.add(deliveries[0].lease.id)
        join = None if deliveries[0].lease.id == "g~>then" else JOIN
        await other.finish(QUEUE, [Finish(deliveries[0].lease, join=join)])
    assert "g~>then" in seen


async def test_a_planted_file_is_neither_followed_nor_written_to(saved: tuple[MemoryStore, Path]) -> None:
    store, path = saved
    second, secret = path.with_name("second"), path.with_name("elsewhere")
    second.with_name(".second.part").symlink_to(secret)
    await write_backup(store, second)
    assert not secret.exists()
    third, planted = path.with_name("third"), path.with_name(".third.part")
    planted.write_bytes(b"theirs")
    planted.chmod(0o666)
    await write_backup(store, third)
    assert planted.read_bytes() == b"theirs"
    assert second.stat().st_mode & 0o777 == third.stat().st_mode & 0o777 == 0o600


async def test_a_held_job_waits_for_the_end_of_its_lease(tmp_path: Path) -> None:
    store, other = MemoryStore(), MemoryStore()
    await store.push(QUEUE, [Push([NewJob("held", b"x", tries=3)])])
    [[delivery]] = (await store.reserve(QUEUE, [Ask(1, HOUR)])).deliveries
    await write_backup(store, tmp_path / "b")
    await restore_backup(other, tmp_path / "b", check_backup(tmp_path / "b"))
    [job] = (await other.list_jobs(QUEUE, State.DELAYED)).jobs
    assert (job.due_at, job.attempt, job.tries) == (delivery.lease_until, 1, 2)


async def test_a_backup_beside_live_traffic_misses_no_job_that_stays(tmp_path: Path) -> None:
    """Jobs go from waiting to leased and back all the time, but none ever ends."""
    store = MemoryStore()
    ids = [f"{number:04}" for number in range(1500)]
    await store.push(QUEUE, [Push([NewJob(job_id, b"x", tries=0)]) for job_id in ids])
    ended = asyncio.Event()

    async def churn() -> None:
        while not ended.is_set():
            [deliveries] = (await store.reserve(QUEUE, [Ask(20, HOUR)])).deliveries
            await asyncio.sleep(0)
            for delivery in deliveries:
                await store.release(delivery.lease, 0)

    churning = asyncio.create_task(churn())
    listing = store.list_jobs

    async def slowly(*args: object, **options: object) -> object:
        await asyncio.sleep(0.001)
        return await listing(*args, **options)  # type: ignore[arg-type]

    store.list_jobs = slowly  # type: ignore[method-assign,assignment]
    summary = await write_backup(store, tmp_path / "b")
    ended.set()
    await churning
    assert summary.jobs == len(ids)
