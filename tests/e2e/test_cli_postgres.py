"""`doctor` and `migrate` on a real PostgreSQL."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from duetime.cli import doctor_postgres
from tests.e2e.shell import Ran, Shell
from tests.plugins.postgres_server import PostgresServer

pytestmark = pytest.mark.store_kind("postgres")

DATABASE, GUEST = 'a "fresh" one', "our-guest"
"""Names that a statement must quote."""


@pytest.fixture
def admin_url(postgres_server: PostgresServer) -> str:
    """The URL of a database of its own, for a superuser."""
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute(SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(Identifier(DATABASE)))
        connection.execute(SQL("CREATE DATABASE {}").format(Identifier(DATABASE)))
    return postgres_server.url.replace("/postgres", f"/{quote(DATABASE)}")


@pytest.fixture
def database(admin_url: str) -> Iterator["psycopg.Connection[Any]"]:
    """A superuser's connection to that database."""
    with psycopg.connect(admin_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def guest_url(admin_url: str, database: "psycopg.Connection[Any]") -> Iterator[str]:
    """The URL of a user without any rights."""
    guest = Identifier(GUEST)
    database.execute(SQL("CREATE ROLE {} LOGIN").format(guest))
    yield admin_url.replace("duetime@", f"{GUEST}@")
    database.execute(SQL("DROP OWNED BY {}").format(guest))
    database.execute(SQL("DROP ROLE {}").format(guest))


def fixes(ran: Ran, check: str) -> list[str]:
    return [one["fix"] for one in ran.documents if one["check"] == check and one["fix"]]


def findings(ran: Ran, grade: str) -> dict[str, dict[str, Any]]:
    return {one["check"]: one for one in ran.documents if one["grade"] == grade}


def test_grants_are_named_one_by_one_until_all_is_fine(
    guest_url: str, admin_url: str, database: "psycopg.Connection[Any]", tmp_path: Path
) -> None:
    guest = Shell(guest_url, tmp_path)
    Shell(admin_url, tmp_path).ok("migrate")
    for _ in range(30):
        ran = guest.run("doctor", "--json")
        if not (wanted := fixes(ran, "postgres.grants")):
            break
        for statement in wanted:
            database.execute(statement)  # type: ignore[arg-type]
    assert findings(ran, "ok").keys() >= {"postgres.tables", "store.answers", "store.clock"}
    guest.ok("push", "mail", "x")


@pytest.mark.parametrize("schema", ["not_there", "theirs", "public"])
def test_the_grant_for_the_first_start_can_be_pasted(
    schema: str, guest_url: str, database: "psycopg.Connection[Any]", tmp_path: Path
) -> None:
    database.execute("CREATE SCHEMA theirs")
    guest = Shell(f"{guest_url}?schema={schema}", tmp_path)
    ran = guest.run("doctor", "--json")
    assert ran.code == 1
    assert "duetime migrate --sql" in findings(ran, "fail")["postgres.grants"]["why"]
    assert database.execute("SELECT to_regnamespace('not_there')").fetchone() == (None,), "looking makes nothing"
    for statement in fixes(ran, "postgres.grants"):
        database.execute(statement)  # type: ignore[arg-type]
    assert "duetime migrate" in findings(guest.run("doctor", "--json"), "ok")["postgres.tables"]["what"]
    guest.ok("migrate")


def test_the_doctor_names_what_a_plain_role_cannot_see(
    guest_url: str, admin_url: str, database: "psycopg.Connection[Any]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_postgres, "LONG_S", -1)
    guest = Shell(guest_url, tmp_path)
    with ExitStack() as others:
        for _ in range(20):
            other = others.enter_context(psycopg.connect(admin_url, application_name="forgotten"))
            other.execute("SELECT 1")
        ran = guest.run("doctor", "--json")
        used = int(findings(ran, "ok")["postgres.connections"]["what"].split()[0])
        assert used > 20
        assert "not visible" in findings(ran, "warn")["postgres.oldest_transaction"]["what"]
        [statement] = fixes(ran, "postgres.oldest_transaction")
        database.execute(statement)  # type: ignore[arg-type]
        ran = guest.run("doctor", "--json")
        assert len([one for one in ran.documents if "forgotten" in one["what"]]) == 20
        assert not [one for one in ran.documents if "not visible" in one["what"]]


def test_only_tables_of_ours_are_judged(
    guest_url: str, database: "psycopg.Connection[Any]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute("CREATE TABLE public.orders (id int) WITH (autovacuum_enabled = false)")
    database.execute("GRANT CREATE ON SCHEMA public TO PUBLIC")
    guest = Shell(f"{guest_url}?schema=public", tmp_path)
    guest.ok("migrate")
    ran = guest.run("doctor", "--json")
    assert [one for one in ran.documents if "orders" in one["what"] + one["fix"]] == []
    assert "postgres.tables" in findings(ran, "ok")


@pytest.mark.parametrize("table", ["jobs (payload text)", "migrations (id int, migration text, batch int)"])
def test_tables_of_another_program_with_our_names(
    table: str, guest_url: str, database: "psycopg.Connection[Any]", tmp_path: Path
) -> None:
    database.execute(f"CREATE TABLE public.{table}")  # type: ignore[arg-type]
    found = findings(Shell(f"{guest_url}?schema=public", tmp_path).run("doctor", "--json"), "fail")
    assert "another program" in found["postgres.tables"]["what"]
    assert "schema=" in found["postgres.tables"]["fix"]
    assert "postgres.grants" not in found


def test_settings_that_lose_jobs_and_forgotten_transactions(
    admin_url: str,
    database: "psycopg.Connection[Any]",
    postgres_server: PostgresServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shell = Shell(admin_url, tmp_path)
    shell.ok("migrate")
    database.execute("ALTER TABLE duetime.jobs SET (autovacuum_enabled = false)")
    changed = SQL("ALTER DATABASE {} SET default_transaction_isolation = 'serializable'")
    database.execute(changed.format(Identifier(DATABASE)))
    monkeypatch.setattr(doctor_postgres, "LONG_S", -1)
    monkeypatch.setattr(doctor_postgres, "MANY_DEAD", 10)
    database.execute("INSERT INTO duetime.marks SELECT 'a', 'b', n::text, '', 0, '' FROM generate_series(1, 100) AS n")
    database.execute("DELETE FROM duetime.marks")
    database.execute("SELECT pg_stat_force_next_flush()")
    with psycopg.connect(postgres_server.url, application_name="forgotten") as holder:
        holder.execute("SELECT 1")
        ran = shell.run("doctor", "--json")
        ended = [one["fix"] for one in ran.documents if "forgotten" in one["what"]]
        assert ended == [f"SELECT pg_terminate_backend({holder.info.backend_pid})"]
    assert ran.code == 1
    # The server of the tests runs without syncs.
    assert "ALTER SYSTEM SET fsync = on" in findings(ran, "fail")["postgres.durability"]["fix"]
    assert findings(ran, "fail").keys() == {"postgres.durability", "postgres.autovacuum"}
    warned = findings(ran, "warn")
    assert "ALTER TABLE" in warned["postgres.autovacuum"]["fix"]
    assert "read committed" in warned["postgres.isolation"]["fix"]
    assert warned["postgres.bloat"]["fix"] == 'VACUUM (ANALYZE) "duetime"."marks"'
    shell.ok("push", "mail", "x")
    for statement in fixes(ran, "postgres.isolation"):
        database.execute(statement)  # type: ignore[arg-type]
    assert "postgres.isolation" in findings(shell.run("doctor", "--json"), "ok")
    database.execute("ALTER ROLE duetime RESET default_transaction_isolation")


def test_commits_that_are_answered_before_they_are_durable(
    start_postgres: Callable[..., PostgresServer], tmp_path: Path
) -> None:
    server = start_postgres(fsync="on", full_page_writes="on", synchronous_commit="off")
    warned = findings(Shell(server.url, tmp_path).run("doctor", "--json"), "warn")
    assert warned["postgres.durability"]["what"] == "synchronous_commit is off"


def test_a_server_that_does_not_answer(free_port: int, tmp_path: Path) -> None:
    ran = Shell(f"postgresql://127.0.0.1:{free_port}/x", tmp_path).run("doctor", "--json")
    assert (ran.code, list(findings(ran, "fail"))) == (1, ["store.answers"])


def test_migrate_prints_a_script_for_another_user(
    admin_url: str, database: "psycopg.Connection[Any]", tmp_path: Path
) -> None:
    shell = Shell(admin_url, tmp_path)
    printed = shell.ok("migrate", "--sql").out
    assert database.execute("SELECT to_regnamespace('duetime')").fetchone() == (None,)
    database.execute(printed)  # type: ignore[arg-type]
    assert "up to date" in shell.ok("migrate").out
    assert shell.ok("migrate", "--sql").out == ""
    shell.ok("push", "mail", "x")


def test_migrate_knows_sqlite_and_what_needs_nothing(tmp_path: Path) -> None:
    file = Shell(f"sqlite://{tmp_path}/jobs.db", tmp_path)
    assert "CREATE TABLE" in file.ok("migrate", "--sql").out
    assert list(tmp_path.iterdir()) == []
    assert "applied 0001" in file.ok("migrate").out
    assert "up to date" in file.ok("migrate").out
    assert "up to date" in Shell("memory:", tmp_path).ok("migrate").out
    assert Shell("http://127.0.0.1:1", tmp_path).run("migrate").code == 2
