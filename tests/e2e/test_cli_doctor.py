"""`doctor`: on SQLite, on a real Redis in good and bad shape, on this machine's settings."""

import os
import sqlite3
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

import duetime
from duetime.cli.doctor_checks import Check, Grade, judge
from duetime.cli.doctor_redis import examine_facts
from duetime.cli.doctor_sqlite import filesystem_of
from duetime.cli.doctor_store import CLOCK, SLOW_MS, examine_store, skew_facts
from duetime.stores.sqlite.store import SqliteSession
from tests.e2e.shell import Ran, Shell
from tests.plugins.redis_server import RedisServer


def grades(ran: Ran) -> dict[str, str]:
    return {finding["check"]: finding["grade"] for finding in ran.documents}


def find(ran: Ran, check: str) -> dict[str, Any]:
    [finding] = [one for one in ran.documents if one["check"] == check]
    return finding


def test_a_sound_sqlite_store(shell: Shell) -> None:
    shell.ok("push", "mail", "x")
    ran = shell.spawn("doctor", "--deep", "--json")
    assert ran.code == 0
    assert all(finding.keys() == {"check", "grade", "what", "why", "fix"} for finding in ran.documents)
    assert set(grades(ran)) == {
        "sqlite.folder",
        "sqlite.filesystem",
        "sqlite.disk",
        "sqlite.synchronous",
        "sqlite.file",
        "sqlite.journal_mode",
        "sqlite.quick_check",
        "store.answers",
        "store.clock",
        "store.damaged",
        "store.check",
    }
    assert "fail" not in grades(ran).values()


def test_a_store_that_reads_slowly_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = SqliteSession.begin

    def begin_slowly(session: SqliteSession, *, read_only: bool) -> None:
        time.sleep(SLOW_MS / 1000 if read_only else 0)
        begin(session, read_only=read_only)

    url = f"sqlite:{tmp_path / 'jobs.db'}"
    with duetime.connect(url) as client:
        client.queue("mail").push("x")
    monkeypatch.setattr(SqliteSession, "begin", begin_slowly)
    [found] = [finding for finding in examine_store(url, deep=False) if finding.check == "store.answers"]
    assert found.grade is Grade.WARN


def test_programs_without_a_journal_are_listed_if_the_pool_journals(shell: Shell, tmp_path: Path) -> None:
    with duetime.connect(shell.url, journal="off") as without:
        without.queue("mail").push("x")
        assert "journal.programs" not in grades(shell.run("doctor", "--json")), "the pool does not journal"
        with duetime.connect(shell.url, journal=str(tmp_path / "journal")) as journaling:
            journaling.queue("mail").push("y")
        found = find(shell.run("doctor", "--json"), "journal.programs")
        assert found["grade"] == "warn"
        assert f"process {os.getpid()} on " in found["what"]
        assert "--assume-lost" in found["fix"]
    assert find(shell.run("doctor", "--json"), "journal.programs")["grade"] == "ok"


def test_alerts_that_cannot_be_mailed_are_named(shell: Shell) -> None:
    shell.ok("push", "mail", "x")
    assert "alerts.mail" not in grades(shell.run("doctor", "--json")), "nobody receives alerts"
    shell.ok("alert", "add", "ops@example.com")
    found = find(shell.run("doctor", "--json"), "alerts.mail")
    assert found["grade"] == "warn"
    assert "ops@example.com" in found["what"]
    assert "duetime alert mail-server" in found["fix"]
    shell.ok("alert", "mail-server", "--host", "smtp.example.com", "--from", "d@example.com")
    assert find(shell.run("doctor", "--json"), "alerts.mail")["grade"] == "ok"


def test_each_finding_has_a_reason_and_a_fix(shell: Shell) -> None:
    shell.ok("push", "mail", "x")
    ran = shell.run("doctor", "--url", shell.url + "?synchronous=OFF")
    assert ran.code == 1
    assert "fail synchronous=OFF\n     because a loss of power" in ran.out
    assert "     do: remove synchronous=OFF" in ran.out
    assert ran.err.startswith("duetime: 1 failed")


def test_looking_creates_nothing(shell: Shell, tmp_path: Path) -> None:
    ran = shell.run("doctor", "--json")
    assert ran.code == 0
    assert "does not exist yet" in find(ran, "sqlite.file")["what"]
    assert list(tmp_path.iterdir()) == []


def test_a_foreign_file_and_a_missing_folder(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_bytes(b"this is no database" * 100)
    ran = shell.run("doctor", "--json")
    assert (ran.code, find(ran, "sqlite.file")["grade"]) == (1, "fail")
    ran = shell.run("doctor", "--json", "--url", "sqlite:")
    assert [finding["check"] for finding in ran.documents] == ["store.url"]
    ran = shell.run("doctor", "--json", "--url", f"sqlite://{tmp_path}/no/jobs.db")
    assert (ran.code, find(ran, "sqlite.folder")["grade"]) == (1, "fail")


def test_deep_finds_a_broken_invariant(shell: Shell, tmp_path: Path) -> None:
    shell.ok("push", "mail", "x")
    with sqlite3.connect(tmp_path / "jobs.db") as connection:
        connection.execute("UPDATE jobs SET attempt = -5")
    connection.close()
    ran = shell.run("doctor", "--deep", "--json")
    assert (ran.code, find(ran, "store.check")["grade"]) == (1, "fail")


def test_a_redis_that_keeps_nothing_and_one_that_does(tmp_path: Path, start_redis: Callable[..., RedisServer]) -> None:
    loose = start_redis(maxmemory="100mb", maxmemory_policy="allkeys-lru")
    ran = Shell(loose.url, tmp_path).spawn("doctor", "--json")
    assert ran.code == 1
    assert grades(ran)["redis.maxmemory_policy"] == "fail"
    assert grades(ran)["redis.persistence"] == "fail"
    assert (grades(ran)["redis.version"], grades(ran)["store.answers"]) == ("ok", "ok")
    settings = {"maxmemory": "100mb", "maxmemory_policy": "noeviction", "appendonly": "yes", "appendfsync": "always"}
    safe = start_redis(**settings, requirepass="geheim")
    ran = Shell(safe.url, tmp_path).run("doctor", "--deep", "--json")
    assert ran.code == 0
    assert {check: grade for check, grade in grades(ran).items() if grade != "ok"} == {}
    assert "geheim" not in ran.out
    safe.stop()
    ran = Shell(safe.url, tmp_path).run("doctor", "--json")
    assert (ran.code, grades(ran)) == (1, {"store.answers": "fail"})
    assert "geheim" not in ran.out


def test_a_redis_user_without_channels(tmp_path: Path, start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis()
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("ACL", "SETUSER", "worker", "on", ">geheim", "~dt:*", "resetchannels", "+@all")
    url = server.url.replace("redis://", "redis://worker:geheim@")
    ran = Shell(url, tmp_path).run("doctor", "--json")
    assert (ran.code, find(ran, "redis.channels")["grade"]) == (1, "fail")
    wanted = find(ran, "redis.channels")["fix"].split("(")[0].removeprefix("ACL SETUSER <user> ").split()
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("ACL", "SETUSER", "worker", *wanted)
    ran = Shell(url, tmp_path).run("doctor", "--json")
    assert find(ran, "redis.channels")["grade"] == "ok"


def test_sentinels_over_tls(tmp_path: Path, tls_sentinel_port: int, certificate: Path) -> None:
    """The Sentinels are asked over TLS, as the store asks them, and not only the primary that they name."""
    url = f"redis+sentinel://127.0.0.1:{tls_sentinel_port}/main?tls=1&ca={certificate}"
    ran = Shell(url, tmp_path).run("doctor", "--json")
    assert (grades(ran)["redis.version"], grades(ran)["redis.role"]) == ("ok", "ok")
    assert grades(ran)["store.answers"] == "ok"


def test_entries_that_were_set_aside(tmp_path: Path, start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis()
    shell = Shell(server.url, tmp_path)
    shell.ok("push", "mail", "x", "--id", "a")
    with redis.Redis.from_url(server.url) as client:
        [key] = client.keys("*:jobs")
        client.hset(key, "a", "foreign")
    assert find(shell.run("doctor", "--json"), "store.damaged")["grade"] == "ok"
    shell.run("reserve", "mail")
    ran = shell.run("doctor", "--json")
    assert (ran.code, find(ran, "store.damaged")["grade"]) == (1, "fail")
    assert "mail (1)" in find(ran, "store.damaged")["what"]


SAFE_INFO: dict[str, Any] = {
    "redis_version": "7.0.15",
    "role": "master",
    "maxmemory": 100,
    "used_memory": 10,
    "maxmemory_policy": "noeviction",
    "aof_enabled": 1,
    "connected_slaves": 0,
}
SAFE_CONFIG: dict[str, Any] = {"maxmemory-policy": "noeviction", "appendfsync": "always", "save": ""}


@pytest.mark.parametrize(
    ("check", "grade", "info", "config"),
    [
        ("redis.version", "fail", {"redis_version": "6.0.16"}, {}),
        ("redis.role", "fail", {"role": "slave", "master_host": "h", "master_port": 1}, {}),
        ("redis.maxmemory_policy", "fail", {}, {"maxmemory-policy": "volatile-ttl"}),
        ("redis.maxmemory_policy", "warn", {"maxmemory": 0}, {"maxmemory-policy": "volatile-ttl"}),
        ("redis.memory", "warn", {"maxmemory": 0}, {}),
        ("redis.memory", "warn", {"used_memory": 85}, {}),
        ("redis.memory", "fail", {"used_memory": 96}, {}),
        ("redis.persistence", "ok", {}, {}),
        ("redis.persistence", "warn", {}, {"appendfsync": "everysec"}),
        ("redis.persistence", "warn", {}, {"appendfsync": "no"}),
        ("redis.persistence", "warn", {"aof_enabled": 0}, {"save": "3600 1"}),
        ("redis.persistence", "fail", {"aof_enabled": 0}, {}),
        ("redis.last_writes", "fail", {"aof_last_write_status": "err"}, {}),
        ("redis.replicas", "warn", {"connected_slaves": 1}, {}),
        ("redis.replicas", "ok", {"connected_slaves": 1}, {"min-replicas-to-write": "1"}),
    ],
)
def test_answers_of_redis_are_judged(check: str, grade: str, info: dict[str, Any], config: dict[str, Any]) -> None:
    findings = {one.check: one for one in examine_facts("r", SAFE_INFO | info, SAFE_CONFIG | config)}
    assert findings[check].grade == grade
    assert all(one.why and one.fix for one in findings.values() if one.grade != "ok")


def test_a_redis_that_does_not_show_its_configuration_is_judged_by_the_rest() -> None:
    findings = {one.check: one.grade for one in examine_facts("r", SAFE_INFO | {"aof_enabled": 0}, None)}
    assert (findings["redis.maxmemory_policy"], findings["redis.persistence"]) == ("ok", "warn")


@pytest.mark.parametrize(("skew_ms", "grade"), [(3, "ok"), (-900, "warn"), (7000, "fail")])
def test_clocks(skew_ms: int, grade: str) -> None:
    [finding] = judge([Check("clock", *CLOCK)], skew_facts(skew_ms))
    assert finding.grade == grade


def test_the_file_system_is_the_nearest_mount() -> None:
    mounts = "/dev/sda1 / ext4 rw 0 0\nserver:/x /srv nfs4 rw 0 0\ntmpfs /srv/fast\\040one tmpfs rw 0 0\n"
    assert filesystem_of(Path("/srv/jobs"), mounts) == "nfs4"
    assert filesystem_of(Path("/srv/fast one"), mounts) == "tmpfs"
    assert filesystem_of(Path("/srvx"), mounts) == "ext4"


def test_without_a_url_it_checks_what_a_server_here_would_use(tmp_path: Path, free_port: int) -> None:
    here = Shell("", tmp_path)
    settings = tmp_path / "duetime.toml"
    settings.write_text(f'port = {free_port}\nadmin_port = 0\njournal = "{tmp_path}/missing"\n')
    ran = here.run("doctor", "--json")
    assert ran.code == 1
    assert grades(ran) == {
        "settings.valid": "ok",
        "server.port": "ok",
        "server.admin_port": "ok",
        "journal.folder": "fail",
        "pool": "ok",
        "sqlite.folder": "ok",
    }
    settings.write_text("prot = 1\n")
    ran = here.run("doctor", "--json")
    assert (ran.code, grades(ran)) == (1, {"settings.valid": "fail"})
    assert "'port'" in find(ran, "settings.valid")["what"]


def test_a_port_that_another_program_has(tmp_path: Path, redis_server: RedisServer) -> None:
    (tmp_path / "duetime.toml").write_text(f'port = {redis_server.port}\nhost = "127.0.0.1"\nadmin_port = 0\n')
    ran = Shell("", tmp_path).run("doctor", "--json")
    assert (ran.code, find(ran, "server.port")["grade"]) == (1, "fail")


def test_a_server_that_is_not_there(tmp_path: Path, free_port: int) -> None:
    ran = Shell(f"http://127.0.0.1:{free_port}", tmp_path).run("doctor", "--json")
    assert (ran.code, grades(ran)) == (1, {"server.answers": "fail"})


def test_files_that_hold_jobs_are_for_their_owner_alone(shell: Shell, tmp_path: Path) -> None:
    """With a umask that hides nothing; the doctor tells of files that were opened up later."""
    here = tmp_path / "data"
    before = os.umask(0)
    try:
        here.mkdir()
        with duetime.connect(f"sqlite://{here}/jobs.db", journal=str(here / "journal")) as client:
            client.queue("mail").push("x")
            modes = {str(path.relative_to(here)): path.lstat().st_mode for path in here.rglob("*")}
    finally:
        os.umask(before)
    assert {"jobs.db", "jobs.db-wal", "jobs.db-shm", "jobs.db-wake", "jobs.db-wake/turn", "journal"} <= set(modes)
    assert any(name.startswith("journal/") and stat.S_ISREG(mode) for name, mode in modes.items())
    # The sockets in jobs.db-wake are behind the permissions of that folder.
    assert {name for name, mode in modes.items() if mode & 0o077 and not stat.S_ISSOCK(mode)} == set()

    url = f"sqlite://{here}/jobs.db"
    assert "sqlite.permissions" not in grades(shell.run("doctor", "--url", url, "--json"))
    (here / "jobs.db").chmod(0o644)
    ran = shell.run("doctor", "--url", url, "--json")
    assert find(ran, "sqlite.permissions")["grade"] == "warn"
    assert f"chmod 600 {here}/jobs.db" in find(ran, "sqlite.permissions")["fix"]
    (tmp_path / "duetime.toml").write_text(f'port = 0\nadmin_port = 0\nstore = "{url}"\n')
    assert "journal.permissions" not in grades(Shell("", tmp_path).run("doctor", "--json"))
    (here / "journal").chmod(0o755)
    assert find(Shell("", tmp_path).run("doctor", "--json"), "journal.permissions")["grade"] == "warn"
