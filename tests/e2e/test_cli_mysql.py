"""`doctor` and `migrate` on a real MariaDB."""

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from duetime.cli import doctor_mysql
from duetime.cli.doctor_checks import judge
from tests.e2e.shell import Ran, Shell
from tests.plugins.mysql_server import MysqlServer, find_program
from tests.plugins.until import until

pytestmark = pytest.mark.store_kind("mysql")

GUEST_NAME = "o'guest"
GUEST = "`o'guest`@`%`"


@pytest.fixture
def fresh_url(mysql_server: MysqlServer) -> Iterator[str]:
    """The URL of a database of its own."""
    mysql_server.administer("CREATE DATABASE fresh", "GRANT ALL ON fresh.* TO duetime@'%'")
    yield mysql_server.url.replace("/duetime?", "/fresh?")
    mysql_server.administer("DROP DATABASE fresh")


@pytest.fixture
def guest_url(fresh_url: str, mysql_server: MysqlServer) -> Iterator[str]:
    """The URL of a user who may do nothing in it. A statement must quote the name."""
    mysql_server.administer(f"CREATE USER {GUEST} IDENTIFIED BY 'secret'")
    yield fresh_url.replace("duetime:", f"{quote(GUEST_NAME)}:")
    mysql_server.administer(f"DROP USER {GUEST}")


def run_as_root(server: MysqlServer, script: str) -> None:
    """Give a script to the server's client."""
    subprocess.run(
        [find_program("mariadb"), "--no-defaults", "--user=root", f"--socket={server.socket}", "fresh"],
        input=script.encode(),
        check=True,
        timeout=120,
    )


def fixes(ran: Ran, check: str) -> list[str]:
    return [one["fix"] for one in ran.documents if one["check"] == check and one["fix"]]


def findings(ran: Ran, grade: str) -> dict[str, dict[str, Any]]:
    return {one["check"]: one for one in ran.documents if one["grade"] == grade}


def test_migrate_prints_a_script_for_another_user(fresh_url: str, mysql_server: MysqlServer, tmp_path: Path) -> None:
    shell = Shell(fresh_url, tmp_path)
    printed = shell.ok("migrate", "--sql").out
    assert mysql_server.administer("SHOW TABLES FROM fresh") == ()
    run_as_root(mysql_server, printed)
    assert "up to date" in shell.ok("migrate").out
    assert shell.ok("migrate", "--sql").out == ""
    shell.ok("push", "mail", "x")


def test_the_printed_script_finishes_an_interrupted_migration(
    fresh_url: str, mysql_server: MysqlServer, tmp_path: Path
) -> None:
    shell = Shell(fresh_url, tmp_path)
    whole = shell.ok("migrate", "--sql").out
    run_as_root(mysql_server, whole)
    run_as_root(mysql_server, whole)
    shell.ok("push", "mail", "x")
    mysql_server.administer(
        "UPDATE fresh.duetime_migrations SET applied_at = 0",
        "DROP TABLE fresh.duetime_results",
    )
    run_as_root(mysql_server, shell.ok("migrate", "--sql").out)
    assert "up to date" in shell.ok("migrate").out
    assert mysql_server.administer("SELECT payload FROM fresh.duetime_readable_jobs") == (("x",),)
    assert mysql_server.administer("SELECT count(*) FROM fresh.duetime_results") == ((0,),)


def test_migrate_prints_nothing_that_changes_tables_of_another_program(
    fresh_url: str, mysql_server: MysqlServer, tmp_path: Path
) -> None:
    mysql_server.administer("CREATE TABLE fresh.jobs (payload text)")
    ran = Shell(f"{fresh_url}&prefix=", tmp_path).run("migrate", "--sql")
    assert (ran.out, "that is not Duetime's" in ran.err) == ("", True)


def test_the_doctor_only_reads(fresh_url: str, mysql_server: MysqlServer, tmp_path: Path) -> None:
    ran = Shell(fresh_url, tmp_path).run("doctor", "--json")
    assert "duetime migrate" in findings(ran, "ok")["mysql.tables"]["what"]
    assert mysql_server.administer("SHOW TABLES FROM fresh") == ()
    # The server of the tests runs without syncs.
    assert "innodb_flush_log_at_trx_commit = 1" in findings(ran, "warn")["mysql.durability"]["fix"]
    assert findings(ran, "fail") == {}
    assert "mysql.galera" not in {**findings(ran, "ok"), **findings(ran, "warn")}


@pytest.mark.parametrize(("nodes", "grade"), [(0, None), (1, "warn"), (3, "warn")])
def test_a_node_of_a_galera_cluster_is_named(nodes: int, grade: str | None) -> None:
    found = list(judge([doctor_mysql.GALERA], {"galera_nodes": nodes}))
    assert [one.grade for one in found] == ([grade] if grade else [])
    assert all(f"cluster of {nodes}" in one.what and one.why and one.fix for one in found)


def test_grants_are_named_one_by_one_until_all_is_fine(
    fresh_url: str, guest_url: str, mysql_server: MysqlServer, tmp_path: Path
) -> None:
    Shell(fresh_url, tmp_path).ok("migrate")
    mysql_server.administer(f"GRANT SELECT ON fresh.* TO {GUEST}")
    guest = Shell(guest_url, tmp_path)
    ran = guest.run("doctor", "--json")
    assert ran.code == 1
    wanted = fixes(ran, "mysql.grants")
    assert "GRANT INSERT, UPDATE, DELETE ON `fresh`.`duetime_jobs` TO 'o''guest'@'%'" in wanted
    mysql_server.administer(*wanted)
    ran = guest.run("doctor", "--json")
    assert findings(ran, "ok").keys() >= {"mysql.tables", "store.answers", "store.clock"}
    guest.ok("push", "mail", "x")


def test_tables_that_a_user_cannot_see_are_missed(
    fresh_url: str, guest_url: str, mysql_server: MysqlServer, tmp_path: Path
) -> None:
    Shell(fresh_url, tmp_path).ok("migrate")
    unseen = ("duetime_outbox", "duetime_results")
    for table, _ in mysql_server.administer("SHOW FULL TABLES FROM fresh WHERE table_type = 'BASE TABLE'"):
        if table not in unseen:
            mysql_server.administer(f"GRANT SELECT, INSERT, UPDATE, DELETE ON fresh.{table} TO {GUEST}")
    guest = Shell(guest_url, tmp_path)
    ran = guest.run("doctor", "--json")
    wanted = fixes(ran, "mysql.grants")
    assert [statement.split("`")[3] for statement in wanted] == list(unseen)
    assert "mysql.tables" not in findings(ran, "ok")
    mysql_server.administer(*wanted)
    assert "ours to use" in findings(guest.run("doctor", "--json"), "ok")["mysql.tables"]["what"]


@pytest.mark.parametrize(
    "rights",
    [
        "SELECT",
        "SELECT, INSERT, UPDATE, DELETE, CREATE",
        "SELECT, INSERT, UPDATE, DELETE, CREATE, CREATE VIEW",
        "SELECT, INSERT, UPDATE, CREATE, CREATE VIEW, DROP",
    ],
)
def test_the_grant_for_the_first_start_can_be_pasted(
    rights: str, guest_url: str, mysql_server: MysqlServer, tmp_path: Path
) -> None:
    """The name of the database has an underscore, which stands for any letter in a plain GRANT."""
    mysql_server.administer("CREATE DATABASE `un_der`", f"GRANT {rights} ON `un_der`.* TO {GUEST}")
    try:
        guest = Shell(guest_url.replace("/fresh?", "/un_der?"), tmp_path)
        ran = guest.run("doctor", "--json")
        assert (ran.code, "mysql.tables" in findings(ran, "ok")) == (1, False)
        assert "duetime migrate --sql" in findings(ran, "fail")["mysql.grants"]["why"]
        assert mysql_server.administer("SHOW TABLES FROM un_der") == (), "looking makes nothing"
        mysql_server.administer(*fixes(ran, "mysql.grants"))
        assert "duetime migrate" in findings(guest.run("doctor", "--json"), "ok")["mysql.tables"]["what"]
        guest.ok("migrate")
        guest.ok("push", "mail", "x")
    finally:
        mysql_server.administer("DROP DATABASE `un_der`")


def test_hidden_tables_are_reported(fresh_url: str, guest_url: str, mysql_server: MysqlServer, tmp_path: Path) -> None:
    mysql_server.administer("CREATE TABLE fresh.orders (id int)", f"GRANT SELECT ON fresh.orders TO {GUEST}")
    guest = Shell(guest_url, tmp_path)
    for _ in range(2):
        ran = guest.run("doctor", "--json")
        assert "mysql.tables" not in findings(ran, "ok")
        assert len(fixes(ran, "mysql.grants")) == 1
        Shell(fresh_url, tmp_path).ok("migrate")
    mysql_server.administer(*fixes(ran, "mysql.grants"))
    assert "mysql.tables" in findings(guest.run("doctor", "--json"), "ok")


def test_a_table_that_is_still_to_be_made_needs_the_rights_of_an_upgrade(
    fresh_url: str, guest_url: str, mysql_server: MysqlServer, tmp_path: Path
) -> None:
    Shell(fresh_url, tmp_path).ok("migrate")
    mysql_server.administer("DROP TABLE fresh.duetime_results", "UPDATE fresh.duetime_migrations SET applied_at = 0")
    for table, _ in mysql_server.administer("SHOW FULL TABLES FROM fresh WHERE table_type = 'BASE TABLE'"):
        mysql_server.administer(f"GRANT SELECT, INSERT, UPDATE, DELETE ON fresh.{table} TO {GUEST}")
    guest = Shell(guest_url, tmp_path)
    ran = guest.run("doctor", "--json")
    assert "may not upgrade" in findings(ran, "fail")["mysql.grants"]["what"]
    [statement] = fixes(ran, "mysql.grants")
    mysql_server.administer(statement)
    assert "upgrades the tables" in findings(guest.run("doctor", "--json"), "ok")["mysql.tables"]["what"]


def test_transactions_that_this_user_cannot_see(guest_url: str, mysql_server: MysqlServer, tmp_path: Path) -> None:
    mysql_server.administer(f"GRANT ALL ON fresh.* TO {GUEST}")
    guest = Shell(guest_url, tmp_path)
    ran = guest.run("doctor", "--json")
    assert "not visible" in findings(ran, "warn")["mysql.oldest_transaction"]["what"]
    mysql_server.administer(*fixes(ran, "mysql.oldest_transaction"))
    assert "mysql.oldest_transaction" in findings(guest.run("doctor", "--json"), "ok")


@pytest.mark.parametrize("table", ["jobs (payload text)", "migrations (id int, migration text, batch int)"])
def test_tables_of_another_program_with_our_names(
    table: str, fresh_url: str, mysql_server: MysqlServer, tmp_path: Path
) -> None:
    mysql_server.administer(f"CREATE TABLE fresh.{table}")
    found = findings(Shell(f"{fresh_url}&prefix=", tmp_path).run("doctor", "--json"), "fail")
    assert "another program" in found["mysql.tables"]["what"]
    assert "prefix=" in found["mysql.tables"]["fix"]


def test_only_tables_of_ours_are_judged(
    fresh_url: str, guest_url: str, mysql_server: MysqlServer, tmp_path: Path
) -> None:
    Shell(f"{fresh_url}&prefix=", tmp_path).ok("migrate")
    for table, _ in mysql_server.administer("SHOW FULL TABLES FROM fresh WHERE table_type = 'BASE TABLE'"):
        mysql_server.administer(f"GRANT SELECT, INSERT, UPDATE, DELETE ON fresh.{table} TO {GUEST}")
    mysql_server.administer("CREATE TABLE fresh.orders (id int)", f"GRANT SELECT ON fresh.orders TO {GUEST}")
    ran = Shell(f"{guest_url}&prefix=", tmp_path).run("doctor", "--json")
    assert [one for one in ran.documents if "orders" in one["what"] + one["fix"]] == []
    assert "mysql.tables" in findings(ran, "ok")


def test_space_of_deleted_jobs_is_reported(
    fresh_url: str, mysql_server: MysqlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_mysql, "MUCH_FREE", 8 * 1_048_576)
    shell = Shell(fresh_url, tmp_path)
    shell.ok("migrate")
    assert fixes(shell.run("doctor", "--json"), "mysql.bloat") == []
    mysql_server.administer(
        "INSERT INTO fresh.duetime_bodies (queue, id, body) SELECT 1, seq, repeat('x', 1000000) FROM fresh.seq_1_to_20",
        "DELETE FROM fresh.duetime_bodies",
    )
    free = "SELECT data_free > 10485760 FROM information_schema.tables WHERE table_name = 'duetime_bodies'"
    # The server gives back the room of deleted rows in the background.
    asyncio.run(until(lambda: mysql_server.administer(f"{free} AND table_schema = 'fresh'") == ((1,),)))
    wanted = fixes(shell.run("doctor", "--json"), "mysql.bloat")
    assert wanted == ["OPTIMIZE TABLE `fresh`.`duetime_bodies`"]
    mysql_server.administer(*wanted)
    assert fixes(shell.run("doctor", "--json"), "mysql.bloat") == []


def test_settings_that_hurt_and_forgotten_transactions(
    fresh_url: str, mysql_server: MysqlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = Shell(fresh_url, tmp_path)
    shell.ok("migrate")
    monkeypatch.setattr(doctor_mysql, "LONG_S", 0)
    mysql_server.administer(
        "GRANT PROCESS ON *.* TO duetime@'%'",
        "SET GLOBAL max_allowed_packet = 1048576",
        "SET GLOBAL read_only = 1",
    )
    try:
        with closing(mysql_server.root()) as holder, holder.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("SELECT 1 FROM fresh.duetime_meta FOR UPDATE")
            ran = shell.run("doctor", "--json")
            assert findings(ran, "warn")["mysql.oldest_transaction"]["fix"] == f"KILL {holder.thread_id()}"
    finally:
        mysql_server.administer(
            "REVOKE PROCESS ON *.* FROM duetime@'%'",
            "SET GLOBAL max_allowed_packet = 16777216",
            "SET GLOBAL read_only = 0",
        )
    assert findings(ran, "fail").keys() == {"mysql.writable"}
    assert "SET GLOBAL max_allowed_packet" in findings(ran, "warn")["mysql.max_allowed_packet"]["fix"]


def test_a_server_that_does_not_answer(free_port: int, tmp_path: Path) -> None:
    ran = Shell(f"mysql://127.0.0.1:{free_port}/x", tmp_path).run("doctor", "--json")
    assert (ran.code, list(findings(ran, "fail"))) == (1, ["store.answers"])
