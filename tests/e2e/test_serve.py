"""`duetime serve` as a real process: its start-up message, its ports, its end."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.e2e.shell import Shell
from tests.plugins.served import StartServer

README = Path(__file__).parents[2] / "README.md"


def run(folder: Path, *arguments: str, **environment: str) -> tuple[int, str, str]:
    ran = Shell("", folder).spawn(*arguments, **environment)
    return ran.code, ran.out, ran.err


def test_starts_on_the_default_store_and_prints_addresses(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server()
    assert re.fullmatch(r"Duetime \S+ is ready", server.message[0])
    assert server.address("store") == "sqlite:duetime-data/jobs.db"
    assert (tmp_path / "duetime-data" / "jobs.db").exists()
    for label in ("API", "admin"):
        assert re.fullmatch(r"http://127\.0\.0\.1:[1-9]\d*", server.address(label))


def delivered_by(lines: list[str], folder: Path) -> dict[str, object]:
    """Run a push and a reserve as they are written, and return what was delivered."""
    push, reserve = lines
    for line in (push, reserve):
        done = subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, text=True, timeout=90, check=True)
    [delivery] = json.loads(done.stdout)["deliveries"]
    assert delivery["lease_until"] - 60_000 >= delivery["due_at"]
    return delivery


def test_the_printed_examples_work(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server()
    hints = [line[line.index("curl") :].replace("5s", "1s") for line in server.message if " curl " in line]
    assert delivered_by(hints, tmp_path)["body"] == "hello"


def test_the_printed_examples_work_with_a_token(
    start_server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    server = start_server(dev=False)
    [token] = [line.partition("try")[2] for line in server.message if "TOKEN=$(" in line]
    hints = [line.replace("5s", "1s") for line in server.message if " curl " in line]
    assert delivered_by([f"{token}\n{line}" for line in hints], tmp_path)["body"] == "hello"


def test_the_examples_of_the_readme_work(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server()
    lines = [line for line in README.read_text().splitlines() if line.startswith("curl ")]
    here = [line.replace("localhost:7777", server.api).replace("5s", "1s") for line in lines]
    push, reserve, ack = here
    assert delivered_by([push, reserve], tmp_path)["body"] == {"to": "ann"}
    done = subprocess.run(["bash", "-c", ack], cwd=tmp_path, capture_output=True, text=True, timeout=90, check=True)
    assert json.loads(done.stdout)["results"][0]["moved"]["event"] == "acked"


def test_both_listeners_report_health(start_server: StartServer) -> None:
    server = start_server()
    api = httpx.get(server.api + "/healthz")
    admin = httpx.get(server.admin + "/healthz")
    assert (api.status_code, admin.status_code) == (200, 200)
    assert api.json()["status"] == "ok"
    assert "pools" not in api.json()
    assert admin.json()["pools"]["default"]["status"] == "ok"
    assert admin.json()["pools"]["default"]["store"] == "sqlite"
    for label in ("API", "admin"):
        ready = httpx.get(server.address(label) + "/readyz")
        assert (ready.status_code, ready.json()) == (200, {"status": "ready"})


def test_every_answer_has_a_request_id_and_unknown_paths_their_form(start_server: StartServer) -> None:
    server = start_server()
    answers = [
        httpx.get(server.api + "/healthz"),
        httpx.get(server.api + "/nowhere"),
        httpx.post(server.api + "/healthz"),
        httpx.get(server.admin + "/nowhere"),
        httpx.request("BAD", server.admin + "/healthz"),
    ]
    assert len({answer.headers["X-Request-ID"] for answer in answers}) == 5
    assert [answer.status_code for answer in answers] == [200, 404, 404, 404, 400]
    assert answers[1].json() == {"error": "api not found"}
    assert answers[3].text == "404 page not found"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR2])
def test_a_signal_stops_it_cleanly(start_server: StartServer, number: signal.Signals) -> None:
    server = start_server()
    with httpx.Client() as kept:
        kept.get(server.api + "/healthz")
        code, errors = server.stop(number)
    assert code == 0
    assert "Traceback" not in errors
    assert "ERROR" not in errors
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.api + "/healthz")


@pytest.mark.parametrize(("setting", "flag"), [("port", "--port"), ("admin_port", "--admin-port")])
def test_a_taken_port_is_named_with_the_ways_to_change_it(tmp_path: Path, setting: str, flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        flags = {"--port": "0", "--admin-port": "0", flag: port}
        code, out, errors = run(tmp_path, "serve", "--dev", *(word for pair in flags.items() for word in pair))
    assert (code, out) == (2, "")
    assert errors == (
        f"duetime: cannot listen on 127.0.0.1:{port} (already in use): change {flag} or DUETIME_{setting.upper()}"
        f" or {setting} in duetime.toml\n"
    )


def test_two_servers_do_not_share_a_port_by_accident(start_server: StartServer, tmp_path: Path) -> None:
    first = start_server()
    port = str(first.port)
    assert run(tmp_path, "serve", "--dev", "--port", port, "--admin-port", "0")[0] == 2


def test_settings_come_from_the_file_and_the_environment(start_server: StartServer, tmp_path: Path) -> None:
    (tmp_path / "duetime.toml").write_text('store = "memory:"\nport = 0\nlog_format = "json"\n')
    server = start_server(ports=(), DUETIME_ADMIN_PORT="0")
    assert server.address("store") == "memory:"
    code, errors = server.stop()
    assert code == 0
    events = [json.loads(line)["event"] for line in errors.splitlines()]
    assert "pool_open" in events


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["--port", "70000"], {}, "--port must be a port (0 to 65535), got 70000"),
        (["--port", "0", "--store", "oracle:x"], {}, "store URL must start with one of"),
        (["--config", "missing.toml"], {}, "cannot read the settings file missing.toml: No such file or directory"),
        ([], {"DUETIME_STROE": "x"}, "unknown environment variable DUETIME_STROE; the nearest known is DUETIME_STORE"),
        (["--dev"], {"DUETIME_HOST": "0.0.0.0"}, "--dev accepts any token and must listen on loopback"),
        ([], {"DUETIME_ADMIN_HOST": "0.0.0.0"}, "admin_host must be loopback while there are no [accounts]"),
        ([], {"DUETIME_HOST": "203.0.113.7", "DUETIME_PORT": "0"}, "cannot listen on 203.0.113.7:0"),
    ],
)
def test_wrong_settings_are_one_line_and_exit_2(
    tmp_path: Path, arguments: list[str], environment: dict[str, str], message: str
) -> None:
    code, out, errors = run(tmp_path, "serve", "--admin-port", "0", *arguments, **environment)
    assert (code, out) == (2, "")
    assert message in errors.splitlines()[-1]
    assert "Traceback" not in errors


def test_a_store_that_is_down_is_named_without_its_password_and_waited_for(
    start_server: StartServer, free_port: int
) -> None:
    server = start_server("--store", f"redis://:hush@127.0.0.1:{free_port}/0")
    assert httpx.get(server.admin + "/healthz").json()["status"] == "degraded"
    assert httpx.get(server.api + "/readyz").status_code == 503
    code, errors = server.stop()
    assert code == 0
    assert "hush" not in errors + "\n".join(server.message)


def test_config_prints_values_with_their_sources_and_no_password(tmp_path: Path) -> None:
    (tmp_path / "duetime.toml").write_text('store = "redis://u:hush@h/0"\n[pool.big]\nstore = "redis://:hush@big"\n')
    code, out, errors = run(tmp_path, "config", "--json", DUETIME_PORT="8")
    assert (code, errors) == (0, "")
    document = json.loads(out)
    assert document["settings"]["port"]["value"] == "8"
    assert document["settings"]["port"]["source"] == "DUETIME_PORT"
    assert document["settings"]["store"]["value"] == "redis://u:***@h/0"
    assert document["pools"]["big"] == {"store": "redis://:***@big", "source": "[pool.big] in duetime.toml"}
    assert "hush" not in out
    table = run(tmp_path, "config")[1]
    assert "redis://u:***@h/0" in table
    assert "hush" not in table


def test_version_and_help(tmp_path: Path) -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*\n", run(tmp_path, "version")[1])
    for arguments in (["--help"], ["serve", "--help"]):
        code, out, errors = run(tmp_path, *arguments)
        assert (code, errors) == (0, "")
        assert "Usage: duetime" in out
