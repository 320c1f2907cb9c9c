"""`topic`: added, listed, shown, edited, switched, tested and removed from a shell; on a store and through a server."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.e2e.conftest import Serve
from tests.e2e.shell import Shell


@pytest.fixture
def url() -> Iterator[str]:
    """A receiver that answers everything with a JSON object."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = json.dumps({"code": 200, "path": self.path}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/mail"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_life_of_a_topic_on_a_store(shell: Shell) -> None:
    [added] = shell.json("topic", "add", "mail", "https://a.example/x", "--delay", "10m", "--set", "secret=new")
    assert (added["delay_ms"], added["signed"]) == (600_000, True)
    assert (added["method"], added["success"]) == ("JSON", "status")
    assert added["secret"].startswith("whsec_")
    assert shell.run("topic", "add", "mail", "https://a.example/x").code == 1
    [listed] = shell.json("topic", "list")
    assert (listed["topic"], listed["secret"]) == ("mail", "")
    shell.ok("topic", "edit", "mail", "--retry-if", "{res.code} != 200", "--set", "cap=3", "--set", "verify_tls=false")
    [shown] = shell.json("topic", "show", "mail")
    assert (shown["retry_if"], shown["cap"], shown["verify_tls"]) == ("{res.code} != 200", 3, False)
    assert "10m" in shell.ok("topic", "show", "mail").out
    assert "redis:default:dq_write_total_nums 0" in shell.ok("topic", "counters").out
    assert "offline" in shell.ok("topic", "offline", "mail").out
    assert shell.json("topic", "online", "mail")[0]["status"] == "online"
    assert shell.run("topic", "remove", "mail").code == 2
    shell.ok("topic", "remove", "mail", "--yes")
    assert shell.run("topic", "show", "mail").code == 1
    assert shell.ok("topic", "list").err == "no topics in default\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--set", "colour=red"), "colour"),
        (("--set", "cap=many"), "cap"),
        (("--set", "cap"), "NAME=VALUE"),
        (("--retry-if", "{res.a} ="), "character 9"),
        (("--priority", "highest"), "priority"),
    ],
)
def test_errors_are_one_line(shell: Shell, arguments: tuple[str, ...], said: str) -> None:
    ran = shell.run("topic", "add", "mail", "https://a.example/x", *arguments)

    assert ran.code == 2
    assert said in ran.err


def test_a_sample_call_is_shown(shell: Shell, serve: Serve, url: str) -> None:
    server = Shell(serve("--dev").api, shell.folder)
    server.ok("topic", "add", "mail", url, "--method", "GET", "--set", "php_fields=true", "--set", "success=body")

    [sample] = server.json("topic", "test", "mail", "--body", '{"to": "ann"}')
    assert sample["verdict"] == "done"
    assert sample["request"]["url"].startswith(f"{url}?to=ann&notify_time=")
    assert json.loads(sample["answer"]["body"])["path"].startswith("/mail?to=ann")
    text = server.ok("topic", "test", "mail").out
    assert f"> GET {url}?sample=1" in text
    assert "< HTTP 200" in text

    server.ok("topic", "edit", "mail", "--retry-if", "{res.code} == 200")
    again = server.run("topic", "test", "mail")
    assert (again.code, "the retry condition holds" in again.err) == (1, True)
