"""Several processes on one file: each is woken, and accepted jobs survive a kill.

Run as a module, this file is such a process: ROLE PATH.
"""

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from duetime.model.job import STEP_JOBS, NewJob
from duetime.model.names import Queue
from duetime.stores.base import Push, Pushed, Wake
from duetime.stores.sqlite.store import SqliteStore
from tests.plugins.processes import guard, release

QUEUE = Queue("shop", "mail")
TIMEOUT_S = 120


# --- what the other process does


async def tell_wakes(store: SqliteStore) -> None:
    async for wake in store.wakeups():
        print(f"{wake.queue} {wake.due_at}", flush=True)


async def tell_versions(store: SqliteStore) -> None:
    async for version in store.registry.watch():
        print(version, flush=True)


async def push_for_ever(store: SqliteStore) -> None:
    """Print an id only after its push was answered; many callers, so that transactions are shared."""

    async def caller(name: int) -> None:
        n = 0
        while True:
            [answer] = await store.push(QUEUE, [Push([NewJob(f"{name}-{n}", b"x" * 200)])])
            assert isinstance(answer, Pushed)
            print(f"{name}-{n}", flush=True)
            n += 1

    await asyncio.gather(*[caller(name) for name in range(16)])


ROLES = {role.__name__: role for role in (tell_wakes, tell_versions, push_for_ever)}


async def main(role: str, path: str) -> None:
    store = await SqliteStore.open(path)
    await ROLES[role](store)
    await store.close()


# --- what the tests see


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    opened = await SqliteStore.open(path)
    yield opened
    assert await opened.check() == []
    await opened.close()


class Neighbour:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def line(self) -> str:
        assert self.process.stdout is not None
        return (await asyncio.wait_for(self.process.stdout.readline(), TIMEOUT_S)).decode().strip()

    async def rest(self) -> list[str]:
        assert self.process.stdout is not None
        return (await asyncio.wait_for(self.process.stdout.read(), TIMEOUT_S)).decode().split()

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGKILL)
        await self.process.wait()


@asynccontextmanager
async def neighbour(role: object, path: Path) -> AsyncIterator[Neighbour]:
    pipe = asyncio.subprocess.PIPE
    name = getattr(role, "__name__", "")
    command = [sys.executable, "-m", "tests.unit.test_sql_sqlite_processes", name, path]
    process = await asyncio.create_subprocess_exec(*command, cwd=Path(__file__).parents[2], stdout=pipe)
    guard(process.pid)
    started = Neighbour(process)
    try:
        yield started
    finally:
        await started.kill()
        release(process.pid)


async def push(store: SqliteStore, *ids: str, due_at: int | None = None) -> None:
    [answer] = await store.push(QUEUE, [Push([NewJob(job_id, b"x", due_at=due_at) for job_id in ids])])
    assert isinstance(answer, Pushed)


def mailboxes(path: Path) -> list[Path]:
    return sorted(path.with_name(path.name + "-wake").glob("*.sock"))


def remove(files: list[Path]) -> None:
    for file in files:
        file.unlink()


async def test_a_push_wakes_the_other_process_and_names_the_queue(store: SqliteStore, path: Path) -> None:
    async with neighbour(tell_wakes, path) as other:
        assert await other.line() == "None 0"
        await push(store, "a", due_at=4_000_000_000_000)
        assert await other.line() == "shop/mail 4000000000000"
        await push(store, "later", due_at=4_000_000_000_001)
        await push(store, "earlier", due_at=3_999_999_999_999)
        assert await other.line() == "shop/mail 3999999999999"


async def test_a_process_without_a_notification_finds_a_push(store: SqliteStore, path: Path) -> None:
    async with neighbour(tell_wakes, path) as other:
        assert await other.line() == "None 0"
        remove(mailboxes(path))
        await push(store, "a")
        assert await other.line() == "None 0"


async def test_a_write_to_the_registry_is_seen_by_the_other_process(store: SqliteStore, path: Path) -> None:
    async with neighbour(tell_versions, path) as other:
        assert await other.line() == "0"
        await store.registry.put("token", "a", b"1")
        assert await other.line() == "1"
        remove(mailboxes(path))
        await store.registry.put("token", "a", b"2")
        assert await other.line() == "2"


async def test_the_mailbox_of_a_process_that_was_killed_is_removed(store: SqliteStore, path: Path) -> None:
    async with neighbour(tell_wakes, path) as other:
        assert await other.line() == "None 0"
        assert len(mailboxes(path)) == 1
    assert len(mailboxes(path)) == 1
    await push(store, "a")
    await push(store, "b")  # in a later step of the same thread, so that the first one's announcement is over
    assert mailboxes(path) == []


async def test_accepted_jobs_survive_a_kill(path: Path) -> None:
    async with neighbour(push_for_ever, path) as pusher:
        accepted = [await pusher.line() for _ in range(500)]
        await pusher.kill()
        accepted += (await pusher.rest())[:-1]  # the last line may be cut

    store = await SqliteStore.open(path)
    for first in range(0, len(accepted), STEP_JOBS):
        assert None not in await store.get(QUEUE, accepted[first : first + STEP_JOBS])
    assert await store.check() == []
    await store.close()


async def test_sockets_below_a_very_long_path(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 200) / "jobs.db"
    make_folder(path.parent)
    one, two = await SqliteStore.open(path), await SqliteStore.open(path)
    wakes = one.wakeups()
    assert await anext(wakes) == Wake()
    assert len(mailboxes(path)) == 1
    await push(two, "a", due_at=5)
    assert await asyncio.wait_for(anext(wakes), TIMEOUT_S) == Wake(QUEUE, 5)
    await one.close()
    await two.close()


def make_folder(path: Path) -> None:
    path.mkdir()


async def test_nonsense_from_a_socket_is_ignored(store: SqliteStore, path: Path) -> None:
    wakes = store.wakeups()
    assert await anext(wakes) == Wake()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(b"hello?", str(mailboxes(path)[0]))
    await push(store, "a", due_at=5)
    assert await asyncio.wait_for(anext(wakes), TIMEOUT_S) == Wake(QUEUE, 5)


async def test_a_busy_process_lets_the_other_one_write(path: Path) -> None:
    async with neighbour(push_for_ever, path) as pusher:
        await pusher.line()
        draining = asyncio.create_task(pusher.rest())
        store = await SqliteStore.open(path)
        for n in range(20):
            await push(store, f"mine {n}")
        await store.close()
        await pusher.kill()
        await draining


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
