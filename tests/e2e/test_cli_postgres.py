"""`doctor` and `migrate` on a real PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from duetime.cli import doctor_postgres
from tests.e2e.shell import Ran, Shell
from tests.plugins.postgres_server import PostgresServer

pytestmark = pytest.mark.store_kind("postgres")


@pytest.fixture
def database(postgres_server: PostgresServer) -> Iterator["psycopg.Connection[Any]"]:
    """A connection to a database of its own."""
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS fresh WITH (FORCE)")
        connection.execute("CREATE DATABASE fresh")
    with psycopg.connect(postgres_server.url.replace("/postgres", "/fresh"), autocommit=True) as connection:
        yield connection
        connection.execute("DROP OWNED BY guest")
        connection.execute("DROP ROLE guest")


@pytest.fixture
def guest_url(postgres_server: PostgresServer, database: "psycopg.Connection[Any]") -> str:
    """The URL of a user without any rights."""
    database.execute("CREATE ROLE guest LOGIN")
    return postgres_server.url.replace("duetime@", "guest@").replace("/postgres", "/fresh")


def findings(ran: Ran, grade: str) -> dict[str, dict[str, Any]]:
    return {one["check"]: one for one in ran.documents if one["grade"] == grade}


def test_grants_are_named_one_by_one_until_all_is_fine(
    guest_url: str, database: "psycopg.Connection[Any]", tmp_path: Path
) -> None:
    guest = Shell(guest_url, tmp_path)
    ran = guest.run("doctor", "--json")
    assert ran.code == 1
    assert "duetime migrate --sql" in findings(ran, "fail")["postgres.grants"]["fix"]
    assert database.execute("SELECT to_regnamespace('duetime')").fetchone() == (None,), "looking makes nothing"

    admin = Shell(guest_url.replace("guest@", "duetime@"), tmp_path)
    admin.ok("migrate")
    for _ in range(30):
        ran = guest.run("doctor", "--json")
        wanted = [one["fix"] for one in ran.documents if one["check"] == "postgres.grants"]
        if not wanted:
            break
        for statement in wanted:
            database.execute(statement.replace("CURRENT_USER", "guest"))
    assert findings(ran, "ok").keys() >= {"postgres.tables", "store.answers", "store.clock"}
    guest.ok("push", "mail", "x")


def test_settings_that_lose_jobs_and_forgotten_transactions(
    guest_url: str,
    database: "psycopg.Connection[Any]",
    postgres_server: PostgresServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shell = Shell(guest_url.replace("guest@", "duetime@"), tmp_path)
    shell.ok("migrate")
    database.execute("ALTER TABLE duetime.jobs SET (autovacuum_enabled = false)")
    database.execute("ALTER DATABASE fresh SET default_transaction_isolation = 'serializable'")
    monkeypatch.setattr(doctor_postgres, "LONG_S", -1)
    monkeypatch.setattr(doctor_postgres, "MANY_DEAD", 10)
    database.execute("INSERT INTO duetime.marks SELECT 'a', 'b', n::text, '', 0, '' FROM generate_series(1, 100) AS n")
    database.execute("DELETE FROM duetime.marks")
    database.execute("SELECT pg_stat_force_next_flush()")
    with psycopg.connect(postgres_server.url, application_name="forgotten") as holder:
        holder.execute("SELECT 1")
        ran = shell.run("doctor", "--json")
        fixes = [one["fix"] for one in ran.documents if "forgotten" in one["what"]]
        assert fixes == [f"SELECT pg_terminate_backend({holder.info.backend_pid})"]
    assert ran.code == 1
    # The server of the tests runs without syncs.
    assert "ALTER SYSTEM SET fsync = on" in findings(ran, "fail")["postgres.durability"]["fix"]
    assert findings(ran, "fail").keys() == {"postgres.durability", "postgres.autovacuum"}
    warned = findings(ran, "warn")
    assert "ALTER TABLE" in warned["postgres.autovacuum"]["fix"]
    assert "read committed" in warned["postgres.isolation"]["fix"]
    assert warned["postgres.bloat"]["fix"] == 'VACUUM (ANALYZE) "duetime"."marks"'
    shell.ok("push", "mail", "x")
    database.execute("ALTER DATABASE fresh RESET default_transaction_isolation")


def test_a_server_that_does_not_answer(free_port: int, tmp_path: Path) -> None:
    ran = Shell(f"postgresql://127.0.0.1:{free_port}/x", tmp_path).run("doctor", "--json")
    assert (ran.code, list(findings(ran, "fail"))) == (1, ["store.answers"])


def test_migrate_prints_what_somebody_else_can_run(
    guest_url: str, database: "psycopg.Connection[Any]", tmp_path: Path
) -> None:
    admin = guest_url.replace("guest@", "duetime@")
    shell = Shell(admin, tmp_path)
    printed = shell.ok("migrate", "--sql").out
    assert database.execute("SELECT to_regnamespace('duetime')").fetchone() == (None,)
    database.execute(printed)  # type: ignore[arg-type]
    assert "up to date" in shell.ok("migrate").out
    assert shell.ok("migrate", "--sql").out == ""
    shell.ok("push", "mail", "x")


def test_migrate_upgrades_what_an_older_release_has_made(
    guest_url: str, database: "psycopg.Connection[Any]", tmp_path: Path
) -> None:
    shell = Shell(guest_url.replace("guest@", "duetime@"), tmp_path)
    shell.ok("migrate")
    database.execute("DROP VIEW duetime.duetime_jobs")
    database.execute("DROP FUNCTION duetime.body_text")
    database.execute("DROP TABLE duetime.incoming")
    database.execute("DELETE FROM duetime.migrations WHERE number = 2")
    assert shell.ok("migrate").out == "applied 0002_incoming\n"
    shell.ok("push", "mail", "x")
    assert database.execute("SELECT payload FROM duetime.duetime_jobs").fetchall() == [("x",)]


def test_migrate_knows_sqlite_and_what_needs_nothing(tmp_path: Path) -> None:
    file = Shell(f"sqlite://{tmp_path}/jobs.db", tmp_path)
    assert "CREATE TABLE" in file.ok("migrate", "--sql").out
    assert list(tmp_path.iterdir()) == []
    assert "applied 0001" in file.ok("migrate").out
    assert "up to date" in file.ok("migrate").out
    assert "up to date" in Shell("memory:", tmp_path).ok("migrate").out
    assert Shell("http://127.0.0.1:1", tmp_path).run("migrate").code == 2
