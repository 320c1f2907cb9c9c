"""A disk that fills up under a SQLite file: pushes are refused, and what is there is delivered and acked to the end."""

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from duetime.model.errors import StoreFull
from duetime.model.job import Event, Lease, NewJob
from duetime.model.names import Queue
from duetime.stores.base import Ask, Push, Pushed, Store
from duetime.stores.finishes import Finish, Finished
from duetime.stores.open import open_store
from tests.contract.vocabulary import give_back_one
from tests.plugins.ci import missing_service

MIB = 1_048_576
QUEUE = Queue("shop", "mail")
BODY = b"x" * 2_000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(tmp_path)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        # A test of the reserve that needs no file system of its own is in unit/test_sql_sqlite_file.py.
        missing_service(f"a small file system can only be mounted by root: {done.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


@pytest.fixture
async def store(disk: Path) -> AsyncIterator[Store]:
    opened = await open_store(f"sqlite://{disk}/jobs.db")
    yield opened
    await opened.close()


def fill(disk: Path) -> Path:
    """Something else takes all that is free."""
    filler = disk / "filler"
    with filler.open("ab", buffering=0) as file:
        try:
            while file.write(b"\1" * 4096):
                pass
        except OSError:
            pass
    free = os.statvfs(disk)
    assert free.f_bavail == 0
    return filler


async def push_until_refused(store: Store) -> list[str]:
    pushed = list[str]()
    for number in range(1000):
        ids = [f"j{number}-{n}" for n in range(20)]
        [answer] = await store.push(QUEUE, [Push([NewJob(job_id, BODY) for job_id in ids])])
        if isinstance(answer, StoreFull):
            return pushed
        assert isinstance(answer, Pushed)
        pushed += ids
    raise AssertionError("the disk never filled up")


async def push_some(store: Store, count: int) -> list[str]:
    ids = [f"s{n}" for n in range(count)]
    [answer] = await store.push(QUEUE, [Push([NewJob(job_id, BODY) for job_id in ids])])
    assert isinstance(answer, Pushed)
    return ids


async def deliver(store: Store, count: int) -> list[Lease]:
    leases = list[Lease]()
    while len(leases) < count:
        [found] = (await store.reserve(QUEUE, [Ask(min(50, count - len(leases)), 60_000)])).deliveries
        assert found
        leases += [delivery.lease for delivery in found]
    return leases


async def deliver_and_ack(store: Store, count: int) -> set[str]:
    done = set[str]()
    while len(done) < count:
        for moved in await store.ack(QUEUE, await deliver(store, min(50, count - len(done)))):
            assert moved is not None
            assert not isinstance(moved, Exception)
            assert moved.event is Event.ACKED
            done.add(moved.id)
    return done


async def test_what_fills_its_own_disk_is_delivered_and_acked(store: Store) -> None:
    pushed = await push_until_refused(store)
    assert len(pushed) > 1000
    assert await deliver_and_ack(store, len(pushed)) == set(pushed)
    assert await store.check() == []


async def test_a_drained_queue_takes_pushes_again(store: Store) -> None:
    await deliver_and_ack(store, len(first := await push_until_refused(store)))

    again = await push_until_refused(store)

    assert len(again) > len(first) / 2
    assert await deliver_and_ack(store, len(again)) == set(again)
    assert await store.check() == []


async def test_a_disk_that_others_filled_to_the_last_byte(store: Store, disk: Path) -> None:
    ids = await push_some(store, 500)
    filler = fill(disk)

    [refused] = await store.push(QUEUE, [Push([NewJob("more", BODY)])])
    assert isinstance(refused, StoreFull)
    leases = await deliver(store, 300)
    await store.release(leases.pop(), 0)
    await give_back_one(store, leases.pop())
    await store.kill(leases.pop(), "an error")
    await store.extend(leases[0], 60_000)
    [finished] = await store.finish(QUEUE, [Finish(leases.pop(), [NewJob("next", BODY)], BODY, 60_000)])
    assert isinstance(finished, Finished)
    assert [moved.event for moved in finished.then] == [Event.ACCEPTED]
    assert {moved.id for moved in await store.ack(QUEUE, leases) if moved} == {lease.id for lease in leases}
    await deliver_and_ack(store, len(ids) - 297)
    [again] = await store.push(QUEUE, [Push([NewJob("more", BODY)])])
    assert isinstance(again, StoreFull)

    # And pushes go on when there is room again
    filler.unlink()
    [accepted] = await store.push(QUEUE, [Push([NewJob("more", BODY)])])
    assert isinstance(accepted, Pushed)
    assert await store.check() == []


@pytest.mark.parametrize("whose", ["its own jobs", "other files"])
async def test_a_full_disk_is_opened_again_and_goes_on(disk: Path, whose: str) -> None:
    url = f"sqlite://{disk}/jobs.db"
    store = await open_store(url)
    pushed = await push_until_refused(store) if whose == "its own jobs" else await push_some(store, 500)
    fill(disk)
    assert len(await deliver_and_ack(store, 100)) == 100
    await store.close()
    fill(disk)

    store = await open_store(url)
    await deliver_and_ack(store, len(pushed) - 100)
    [refused] = await store.push(QUEUE, [Push([NewJob("more", BODY)])])
    assert isinstance(refused, StoreFull)
    assert await store.check() == []
    await store.close()
