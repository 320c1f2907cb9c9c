"""A disk that fills up under a database server: nothing is half done, and with room again everything goes on."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from duetime.model.errors import DuetimeError, StoreFull, StoreUnavailable
from duetime.model.job import NewJob
from duetime.model.names import Queue
from duetime.stores.base import Ask, Push, Pushed, Store
from duetime.stores.open import open_store
from tests.plugins.ci import missing_service
from tests.plugins.mysql_server import MysqlServer
from tests.plugins.postgres_server import PostgresServer

QUEUE = Queue("shop", "mail")
BODY = b"x" * 4_000


@contextmanager
def small_disk(folder: Path, user: str) -> Iterator[None]:
    """A file system of 24 MiB in the place of the folder, which belongs to the server's user."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        missing_service(f"a small file system can only be mounted by root: {done.stderr.strip()}")
    shutil.chown(folder, user, user)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path, *, leave: int = 0) -> Path:
    """Something else takes what is free, but for some bytes."""
    filler = disk / "filler"
    found = os.statvfs(disk)
    filler.write_bytes(b"\1" * max(found.f_bavail * found.f_frsize - leave, 0))
    return filler


async def push(store: Store, ids: list[str]) -> DuetimeError | None:
    try:
        [answer] = await store.push(QUEUE, [Push([NewJob(job_id, BODY) for job_id in ids])])
    except DuetimeError as error:
        return error
    return None if isinstance(answer, Pushed) else answer


async def fill_up(store: Store, disk: Path) -> tuple[list[str], DuetimeError]:
    """Push until there is no room left, then make room; the jobs that were accepted, and the refusal."""
    accepted: list[str] = []
    filler = fill(disk, leave=1_000_000)
    while True:
        ids = [f"{len(accepted) + number:06}" for number in range(20)]
        if error := await push(store, ids):
            break
        accepted += ids
    assert accepted, "the disk was full before the first push"
    filler.unlink()
    return accepted, error


async def take_all(store: Store, accepted: list[str]) -> None:
    """With room again, every job that was accepted comes, and no other."""
    assert await push(store, ["with room again"]) is None
    taken: list[str] = []
    while deliveries := (await store.reserve(QUEUE, [Ask(100, 60_000)])).deliveries[0]:
        await store.ack(QUEUE, [one.lease for one in deliveries])
        taken += [one.lease.id for one in deliveries]
    assert sorted(taken) == [*accepted, "with room again"]
    [totals] = await store.totals([QUEUE])
    assert totals.running.accepted == totals.running.acked == len(taken)
    assert list(await store.check()) == []
    await store.close()


@pytest.mark.store_kind("postgres")
async def test_a_postgres_whose_disk_is_full(postgres_server: PostgresServer) -> None:
    (disk := postgres_server.folder / "small").mkdir()
    with small_disk(disk, "postgres"), psycopg.connect(postgres_server.url, autocommit=True) as connection:
        (tables := disk / "tables").mkdir()
        shutil.chown(tables, "postgres", "postgres")
        connection.execute(f"CREATE TABLESPACE small LOCATION '{tables}'")  # type: ignore[arg-type]
        connection.execute("CREATE DATABASE jobs TABLESPACE small")
        try:
            store = await open_store(postgres_server.url.replace("/postgres", "/jobs"))
            accepted, error = await fill_up(store, disk)
            assert isinstance(error, StoreFull), error
            await take_all(store, accepted)
        finally:
            connection.execute("DROP DATABASE jobs WITH (FORCE)")
            connection.execute("DROP TABLESPACE small")


@pytest.mark.store_kind("mysql")
async def test_a_mariadb_whose_disk_is_full(start_mysql: Callable[..., MysqlServer]) -> None:
    """MariaDB 10.11 ends itself where a rollback needs room, too; its jobs are there after the next start."""
    server = start_mysql()
    disk = server.folder / "data" / "duetime"
    with small_disk(disk, "mysql"):
        store = await open_store(server.url)
        accepted, error = await fill_up(store, disk)
        assert isinstance(error, StoreFull | StoreUnavailable), error
        server.kill()
        server.start()
        await take_all(store, accepted)
        server.stop()
