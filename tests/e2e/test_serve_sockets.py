"""Unix sockets, and clients behind a proxy."""

import json
import os
import signal
import socket
import stat
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.plugins.served import ServedProcess, StartServer
from tests.plugins.until import until


def over(path: Path) -> httpx.Client:
    return httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://localhost")


def start(start_server: StartServer, folder: Path, *arguments: str, dev: bool = True, **more: str) -> ServedProcess:
    paths = {"DUETIME_UNIX_SOCKET": str(folder / "api.sock"), "DUETIME_ADMIN_UNIX_SOCKET": str(folder / "admin.sock")}
    return start_server(*arguments, dev=dev, **(paths | more))


@pytest.mark.parametrize("workers", ["1", "2"])
def test_both_apis_listen_on_unix_sockets_too(start_server: StartServer, tmp_path: Path, workers: str) -> None:
    api, admin = tmp_path / "api.sock", tmp_path / "admin.sock"
    server = start(start_server, tmp_path, "--workers", workers, DUETIME_UNIX_SOCKET_MODE="0600")
    assert server.address("socket") == f"unix:{api}"
    with over(api) as client:
        assert client.post("/v1/queues/ns/q/jobs", json={"body": "x"}).status_code == 201
    said = subprocess.run(
        ["curl", "-s", "--unix-socket", str(api), "http://localhost/api/ns/q/size"],
        capture_output=True,
        timeout=90,
        check=True,
    )
    assert json.loads(said.stdout)["size"] == 1
    with over(admin) as client:
        assert 'listener="api_socket"' in client.get("/metrics").text
    assert [stat.S_IMODE(path.stat().st_mode) for path in (api, admin)] == [0o600, 0o600]
    assert httpx.get(server.api + "/healthz").status_code == 200
    assert server.stop()[0] == 0
    assert not api.exists()
    assert not admin.exists()


def test_a_socket_of_a_server_that_has_gone_is_taken_over(start_server: StartServer, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(tmp_path / "api.sock"))
        stale.listen()
    server = start(start_server, tmp_path)
    with over(tmp_path / "api.sock") as client:
        assert client.get("/healthz").status_code == 200
    assert server.stop()[0] == 0


def test_a_socket_that_is_in_use_is_left_alone(start_server: StartServer, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "api.sock"))
        other.listen()
        code, errors = start(start_server, tmp_path).wait()
        assert (code, "another server listens there" in errors) == (2, True)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "api.sock"))


def test_a_file_that_is_no_socket_is_left_alone(start_server: StartServer, tmp_path: Path) -> None:
    (tmp_path / "api.sock").write_text("mine")
    assert start(start_server, tmp_path).wait()[0] == 2
    assert (tmp_path / "api.sock").read_text() == "mine"


def test_a_socket_that_another_server_put_there_is_not_removed(start_server: StartServer, tmp_path: Path) -> None:
    server = start(start_server, tmp_path)
    os.unlink(tmp_path / "api.sock")
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "api.sock"))
        assert server.stop()[0] == 0
        assert (tmp_path / "api.sock").exists()


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_hup_moves_a_socket(start_server: StartServer, tmp_path: Path, workers: str) -> None:
    settings = tmp_path / "duetime.toml"
    settings.write_text(f'unix_socket = "{tmp_path}/one.sock"\n')
    server = start_server("--workers", workers)
    settings.write_text(f'unix_socket = "{tmp_path}/two.sock"\n')
    server.send(signal.SIGHUP)
    await until(lambda: "settings_reloaded" in server.log, deadline_s=120)
    assert not (tmp_path / "one.sock").exists()
    with over(tmp_path / "two.sock") as client:
        assert client.get("/healthz").status_code == 200
    assert server.stop()[0] == 0


def logged_ips(server: ServedProcess) -> list[str]:
    lines = [json.loads(line) for line in server.log.splitlines() if '"access"' in line]
    return [line["ip"] for line in lines if line["path"] == "/healthz"]


@pytest.mark.parametrize(
    ("trusted", "ips"), [("127.0.0.1, unix", ["203.0.113.9"] * 2), ("10.0.0.0/8", ["127.0.0.1", ""])]
)
async def test_the_access_log_names_the_client_behind_a_trusted_proxy(
    start_server: StartServer, tmp_path: Path, trusted: str, ips: list[str]
) -> None:
    options = {"DUETIME_TRUSTED_PROXIES": trusted, "DUETIME_ACCESS_LOG": "true", "DUETIME_LOG_FORMAT": "json"}
    server = start(start_server, tmp_path, dev=False, **options)  # a server with --dev refuses proxied requests
    forwarded = {"X-Forwarded-For": "6.6.6.6, 203.0.113.9"}
    async with httpx.AsyncClient() as client:
        assert (await client.get(server.api + "/healthz", headers=forwarded)).status_code == 200
    with over(tmp_path / "api.sock") as client:
        assert client.get("/healthz", headers=forwarded).status_code == 200
    await until(lambda: len(logged_ips(server)) == 2)
    assert logged_ips(server) == ips
    assert server.stop()[0] == 0
