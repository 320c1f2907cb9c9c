"""The PostgreSQL store behind PgBouncer in transaction mode, which has one session for many connections."""

import asyncio
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from duetime.engine import Engine
from duetime.model.errors import StoreUnavailable
from duetime.model.job import NewJob
from duetime.model.names import Queue
from duetime.stores.open import open_store
from duetime.stores.postgres import store as wake
from tests.plugins.ci import missing_service
from tests.plugins.database_server import DatabaseServer, Setting, servers
from tests.plugins.postgres_server import PostgresServer
from tests.plugins.until import until

pytestmark = pytest.mark.store_kind("postgres")

QUEUE = Queue("shop", "mail")


class PgBouncer(DatabaseServer):
    """Hands the sessions of a PostgreSQL out per transaction."""

    user = "postgres"
    stop_signal = kill_signal = signal.SIGTERM

    def __init__(self, folder: Path, *, server: PostgresServer, **settings: Setting) -> None:
        super().__init__(folder)
        self._server, self._settings = server, settings

    @property
    def url(self) -> str:
        return f"postgresql://duetime@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        users = self.folder / "users"
        users.write_text('"duetime" ""\n')
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": self.port,
            "unix_socket_dir": self.folder,
            "auth_type": "any",
            "auth_file": users,
            "pool_mode": "transaction",
            "default_pool_size": 3,
            "ignore_startup_parameters": "extra_float_digits",
            **self._settings,
        }
        where = f"* = host=127.0.0.1 port={self._server.port} user=duetime"
        lines = ["[databases]", where, "[pgbouncer]", *(f"{name} = {value}" for name, value in settings.items())]
        (self.folder / "pgbouncer.ini").write_text("\n".join(lines) + "\n")
        super().start()

    def _command(self) -> list[str]:
        program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
        if program is None:
            missing_service("PgBouncer is not installed")
        return [program, str(self.folder / "pgbouncer.ini")]

    def _answers(self) -> bool:
        return PostgresServer._answers(self)  # type: ignore[arg-type]


@pytest.fixture
def pooled_url(postgres_url: str, postgres_server: PostgresServer) -> Iterator[str]:
    with servers(PgBouncer, "postgres") as made:
        bouncer: PgBouncer = made.start(server=postgres_server)
        yield postgres_url.replace(f":{postgres_server.port}/", f":{bouncer.port}/")


async def test_jobs_go_through_without_prepared_statements_and_notifications(
    pooled_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes would have a store each: the consumer's hears nothing of a push, and looks once a second."""
    monkeypatch.setattr(wake, "PROBE_S", 0.2)
    store, other = [await open_store(f"{pooled_url}&prepare=off") for _ in range(2)]
    async with Engine(store) as producer, Engine(other) as consumer:
        waiting = asyncio.create_task(consumer.reserve([QUEUE], limit=10, wait_ms=50_000))
        await until(lambda: [record.message for record in caplog.records].count("postgres_notify_is_not_heard") == 2)
        await producer.push(QUEUE, [NewJob("later", b"1", delay_ms=300)])
        [delivery] = await waiting
        assert (delivery.lease.id, delivery.body) == ("later", b"1")
        await asyncio.gather(*(producer.push(QUEUE, [NewJob(f"{number:03}", b"")]) for number in range(100)))
        taken: list[str] = []
        while len(taken) < 100:
            deliveries = await consumer.reserve([QUEUE], limit=30)
            await consumer.ack([one.lease for one in deliveries])
            taken += [one.lease.id for one in deliveries]
        assert sorted(taken) == [f"{number:03}" for number in range(100)]
        await consumer.ack([delivery.lease])
    [totals] = await store.totals([QUEUE])
    assert (totals.running.accepted, totals.running.acked) == (101, 101)
    assert list(await store.check()) == []
    await store.close()
    await other.close()


async def test_a_session_that_changes_hands_says_what_to_set(pooled_url: str) -> None:
    store = await open_store(pooled_url)
    errors: list[str] = []
    for number in range(50):
        answers = await asyncio.gather(
            *(store.counts([Queue("shop", f"{number} {at}")]) for at in range(8)), return_exceptions=True
        )
        errors += [str(answer) for answer in answers if isinstance(answer, StoreUnavailable)]
        if errors:
            break
    assert any("prepare=off" in error for error in errors)
    await store.close()
