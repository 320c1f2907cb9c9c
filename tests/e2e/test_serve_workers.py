"""`duetime serve --workers N`: worker processes that end, are replaced, are rolled and are drained."""

import contextlib
import json
import os
import resource
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.plugins.served import ServedProcess, StartServer, is_running
from tests.plugins.until import until

JOBS = "/v1/queues/ns/q/jobs"
ROLL_S = 120
"""Several processes start, one after the other, on a machine that may have other work."""


def push(server: ServedProcess, body: str = "x") -> httpx.Response:
    return httpx.post(server.api + JOBS, json={"body": body})


async def test_several_processes_serve_one_port(start_server: StartServer) -> None:
    server = start_server("--workers", "2")
    assert server.address("workers") == "2"
    assert len(server.workers()) == 2
    assert push(server).status_code == 201
    code, errors = server.stop()
    assert code == 0
    assert "ERROR" not in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("settings", ['store = "memory:"\n', '[pool.quick]\nstore = "memory:"\n'])
def test_a_memory_store_is_refused_for_several(start_server: StartServer, tmp_path: Path, settings: str) -> None:
    (tmp_path / "duetime.toml").write_text(settings)
    code, errors = start_server("--workers", "2").wait()
    assert code == 2
    assert "several workers cannot share a memory store" in errors


def test_settings_that_only_a_worker_can_refuse_are_one_line_and_exit_2(start_server: StartServer) -> None:
    code, errors = start_server("--workers", "2", "--store", "oracle:x").wait()
    assert code == 2
    assert "store URL must start with one of" in errors.splitlines()[-1]
    assert "Traceback" not in errors


async def test_a_worker_that_ends_is_replaced(start_server: StartServer) -> None:
    server = start_server("--workers", "2")
    before = server.workers()
    os.kill(before[0], signal.SIGKILL)
    await until(lambda: len(server.workers()) == 2 and server.workers() != before)
    await until(lambda: "signal=SIGKILL" in server.log)
    assert push(server).status_code == 201
    assert server.stop()[0] == 0


async def test_hup_rolls_the_workers_when_the_settings_have_changed(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server("--workers", "2")
    before = server.workers()
    server.send(signal.SIGHUP)
    await until(lambda: "settings_unchanged" in server.log)
    assert server.workers() == before
    assert push(server, "x" * 1000).status_code == 201
    (tmp_path / "duetime.toml").write_text("max_body = 100\n")
    server.send(signal.SIGHUP)
    await until(lambda: "settings_reloaded" in server.log, deadline_s=ROLL_S)
    assert len(server.workers()) == 2
    assert not set(server.workers()) & set(before)
    for _ in range(10):
        assert push(server, "x" * 1000).status_code == 413
    assert server.stop()[0] == 0


async def test_settings_that_are_wrong_leave_the_old_ones_in_force(start_server: StartServer, tmp_path: Path) -> None:
    file = tmp_path / "duetime.toml"
    file.write_text("port = 0\nadmin_port = 0\n")
    server = start_server("--workers", "2", ports=())
    before = server.workers()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        wrong = ["max_body = 'x'", "stroe = 'x'", "[pool.b]\nstore = 'oracle:x'", f"admin_port = {number}"]
        for count, text in enumerate(wrong, 1):
            file.write_text(f"port = 0\n{text}\n")
            server.send(signal.SIGHUP)
            await until(lambda count=count: server.log.count("settings_refused") == count)
    assert f"127.0.0.1:{number} (already in use)" in server.log
    assert server.workers() == before
    assert push(server).status_code == 201


async def test_one_process_takes_new_settings_over_in_place(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server()
    assert server.workers() == []
    assert push(server, "x" * 1000).status_code == 201
    (tmp_path / "duetime.toml").write_text("max_body = 100\n")
    server.send(signal.SIGHUP)
    await until(lambda: "settings_reloaded" in server.log, deadline_s=ROLL_S)
    assert push(server, "x" * 1000).status_code == 413
    (tmp_path / "duetime.toml").write_text("[pool.b]\nstore = 'oracle:x'\n")
    server.send(signal.SIGHUP)
    await until(lambda: "settings_refused" in server.log)
    assert push(server, "x" * 1000).status_code == 413
    assert server.stop()[0] == 0


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_change_of_the_settings_file_is_noticed(
    start_server: StartServer, tmp_path: Path, workers: str
) -> None:
    server = start_server("--workers", workers)
    (tmp_path / "duetime.toml").write_text("max_body = 100\n")
    await until(lambda: "settings_reloaded" in server.log, deadline_s=ROLL_S)
    assert push(server, "x" * 1000).status_code == 413
    assert server.stop()[0] == 0


def test_processes_have_names(start_server: StartServer) -> None:
    server = start_server("--workers", "2")
    names = [Path(f"/proc/{pid}/comm").read_text() for pid in (server.process.pid, *server.workers())]
    assert names == ["duetime-master\n", "duetime-serving\n", "duetime-serving\n"]


async def test_a_memory_store_keeps_its_jobs_on_hup(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server("--store", "memory:")
    (tmp_path / "duetime.toml").write_text("max_body = 100\n")
    server.send(signal.SIGHUP)
    await until(lambda: "settings_refused" in server.log)
    assert push(server, "x" * 1000).status_code == 201


async def test_workers_without_a_supervisor_end(start_server: StartServer) -> None:
    server = start_server("--workers", "2")
    workers = server.workers()
    server.send(signal.SIGKILL)
    await until(lambda: not any(is_running(pid) for pid in workers))
    _, errors = server.wait()
    assert "supervisor_gone" in errors
    with pytest.raises(httpx.ConnectError):
        push(server)


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_second_signal_cuts(start_server: StartServer, workers: str) -> None:
    server = start_server("--workers", workers)
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(b"PUT /api/ns/q HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n")
        await until(lambda: is_connected(server.port))
        server.send(signal.SIGTERM)
        await until(lambda: not accepts(server.port))
        server.send(signal.SIGTERM)
        assert server.wait()[0] == 0
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(100) == b""


def is_connected(port: int) -> bool:
    with httpx.Client() as client:  # whoever accepts this has accepted those before it
        return client.get(f"http://127.0.0.1:{port}/healthz").status_code == 200


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True


async def test_a_pid_file_lives_as_long_as_the_server(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server("--workers", "2", "--pid-file", "server.pid")
    assert (tmp_path / "server.pid").read_text() == f"{server.process.pid}\n"
    server.stop()
    assert not (tmp_path / "server.pid").exists()


def test_a_pid_file_that_cannot_be_written_is_named(start_server: StartServer) -> None:
    code, errors = start_server("--pid-file", "nowhere/server.pid").wait()
    assert code == 2
    assert "cannot write the pid file nowhere/server.pid: No such file or directory" in errors


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.setblocking(False)
        yield sock


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_systemd_is_notified(
    start_server: StartServer, tmp_path: Path, systemd: socket.socket, workers: str
) -> None:
    server = start_server("--workers", workers, NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="2000000")
    heard: list[str] = []  # the socket holds ten states, and nobody reads before the server is up

    def hears(word: str) -> bool:
        with contextlib.suppress(BlockingIOError):
            while True:
                heard.append(systemd.recv(4096).decode())
        return any(state.startswith(word) for state in heard)

    await until(lambda: hears("READY=1"))
    await until(lambda: hears("WATCHDOG=1"))
    heard.clear()
    (tmp_path / "duetime.toml").write_text("max_body = 100\n")
    server.send(signal.SIGHUP)
    await until(lambda: hears("RELOADING=1\nMONOTONIC_USEC="))
    await until(lambda: hears("READY=1"), deadline_s=ROLL_S)
    server.stop()
    assert hears("STOPPING=1")


async def test_the_number_of_workers_follows_the_settings(start_server: StartServer, tmp_path: Path) -> None:
    (tmp_path / "duetime.toml").write_text("workers = 2\n")
    server = start_server()
    (tmp_path / "duetime.toml").write_text("workers = 3\n")
    server.send(signal.SIGHUP)
    await until(lambda: len(server.workers()) == 3 and "settings_reloaded" in server.log, deadline_s=ROLL_S)
    (tmp_path / "duetime.toml").write_text("workers = 1\n")
    server.send(signal.SIGHUP)
    await until(lambda: len(server.workers()) == 1, deadline_s=ROLL_S)
    assert push(server).status_code == 201
    assert server.stop()[0] == 0


async def test_usr1_reaches_every_process(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server("--workers", "2", DUETIME_LOG_FILE="server.log", DUETIME_LOG_FORMAT="json")
    file = tmp_path / "server.log"
    await until(file.exists)
    file.rename(tmp_path / "old.log")
    server.send(signal.SIGUSR1)
    await until(file.exists)
    server.stop()
    assert all(json.loads(line) for line in (tmp_path / "old.log").read_text().splitlines())


@contextlib.contextmanager
def no_more_files(pid: int) -> Iterator[None]:
    """The process cannot open another file or socket in the block."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


async def test_a_worker_that_cannot_be_launched_is_tried_again(start_server: StartServer) -> None:
    server = start_server("--workers", "2")
    before = server.workers()
    with no_more_files(server.process.pid):
        os.kill(before[0], signal.SIGKILL)
        await until(lambda: "worker_not_started" in server.log)
        assert push(server).status_code == 201
    await until(lambda: len(server.workers()) == 2, deadline_s=ROLL_S)
    assert server.stop()[0] == 0


async def test_a_stop_ends_while_a_worker_cannot_be_launched(start_server: StartServer) -> None:
    server = start_server("--workers", "2")
    with no_more_files(server.process.pid):
        os.kill(server.workers()[0], signal.SIGKILL)
        await until(lambda: "worker_not_started" in server.log)
        code, log = server.stop()
        assert code == 0, log


async def test_with_no_worker_left_the_last_one_is_restarted_immediately(start_server: StartServer) -> None:
    server = start_server("--workers", "2", DUETIME_LOG_FORMAT="json")
    for rounds in range(1, 5):
        for pid in server.workers():
            os.kill(pid, signal.SIGKILL)
        async with httpx.AsyncClient(timeout=ROLL_S) as client:  # it waits in the socket's queue for the next worker
            assert (await client.post(server.api + JOBS, json={"body": "x"})).status_code == 201
        waits = [json.loads(line)["wait_ms"] for line in server.log.splitlines() if "worker_ended" in line]
        assert waits.count(0) >= rounds
    assert server.stop()[0] == 0
