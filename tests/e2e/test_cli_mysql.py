"""`doctor` and `migrate` on a real MariaDB."""

import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from duetime.cli import doctor_mysql
from tests.e2e.shell import Ran, Shell
from tests.plugins.mysql_server import MysqlServer, find_program

pytestmark = pytest.mark.store_kind("mysql")


@pytest.fixture
def fresh_url(mysql_server: MysqlServer) -> Iterator[str]:
    """The URL of a database of its own."""
    mysql_server.administer("CREATE DATABASE fresh", "GRANT ALL ON fresh.* TO duetime@'%'")
    yield mysql_server.url.replace("/duetime?", "/fresh?")
    mysql_server.administer("DROP DATABASE fresh", "DROP USER IF EXISTS guest@'%'")


def findings(ran: Ran, grade: str) -> dict[str, dict[str, Any]]:
    return {one["check"]: one for one in ran.documents if one["grade"] == grade}


def test_migrate_prints_what_somebody_else_can_run(fresh_url: str, mysql_server: MysqlServer, tmp_path: Path) -> None:
    shell = Shell(fresh_url, tmp_path)
    printed = shell.ok("migrate", "--sql").out
    assert mysql_server.administer("SHOW TABLES FROM fresh") == ()
    subprocess.run(
        [find_program("mariadb"), "--no-defaults", "--user=root", f"--socket={mysql_server.socket}", "fresh"],
        input=printed.encode(),
        check=True,
        timeout=120,
    )
    assert "up to date" in shell.ok("migrate").out
    assert shell.ok("migrate", "--sql").out == ""
    shell.ok("push", "mail", "x")


def test_migrate_upgrades_what_an_older_release_has_made(
    fresh_url: str, mysql_server: MysqlServer, tmp_path: Path
) -> None:
    shell = Shell(fresh_url, tmp_path)
    assert shell.ok("migrate").out == "applied 0001_begin\napplied 0002_incoming\napplied 0003_results\n"
    mysql_server.administer(
        "DROP VIEW fresh.duetime_readable_jobs",
        "DROP TABLE fresh.duetime_incoming",
        "DELETE FROM fresh.duetime_migrations WHERE number = 2",
    )
    assert shell.ok("migrate").out == "applied 0002_incoming\n"
    shell.ok("push", "mail", "x")
    assert mysql_server.administer("SELECT payload FROM fresh.duetime_readable_jobs") == (("x",),)


def test_the_doctor_looks_and_makes_nothing(fresh_url: str, mysql_server: MysqlServer, tmp_path: Path) -> None:
    ran = Shell(fresh_url, tmp_path).run("doctor", "--json")
    assert "duetime migrate" in findings(ran, "ok")["mysql.tables"]["what"]
    assert mysql_server.administer("SHOW TABLES FROM fresh") == ()
    # The server of the tests runs without syncs.
    assert "innodb_flush_log_at_trx_commit = 1" in findings(ran, "warn")["mysql.durability"]["fix"]
    assert findings(ran, "fail") == {}


def test_grants_are_named_one_by_one_until_all_is_fine(
    fresh_url: str, mysql_server: MysqlServer, tmp_path: Path
) -> None:
    Shell(fresh_url, tmp_path).ok("migrate")
    mysql_server.administer("CREATE USER guest@'%' IDENTIFIED BY 'secret'", "GRANT SELECT ON fresh.* TO guest@'%'")
    guest = Shell(fresh_url.replace("duetime:", "guest:"), tmp_path)
    ran = guest.run("doctor", "--json")
    assert ran.code == 1
    wanted = [one["fix"] for one in ran.documents if one["check"] == "mysql.grants"]
    assert "GRANT INSERT, UPDATE, DELETE ON `fresh`.`duetime_jobs` TO CURRENT_USER" in wanted
    mysql_server.administer(*(statement.replace("CURRENT_USER", "guest@'%'") for statement in wanted))
    ran = guest.run("doctor", "--json")
    assert findings(ran, "ok").keys() >= {"mysql.tables", "store.answers", "store.clock"}
    guest.ok("push", "mail", "x")


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
