"""The page Access and who is told of alerts: tokens, limits, sessions, addresses, the mail server."""

import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import httpx
import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, Envelope

import duetime
from duetime.alerts.problems import KEY, SETTINGS, AlertSettings, read_settings
from duetime.model.job import State
from duetime.stores.open import open_store
from tests.console.conftest import Visitor
from tests.plugins.ports import find_free_port
from tests.plugins.serving import Served

SPACE = "access"


def push(served: Served, token: str) -> int:
    address = f"{served.api}/v1/queues/{SPACE}/mail/jobs"
    return httpx.post(address, json={"body": "x"}, headers={"x-token": token}, timeout=60).status_code


def test_a_token_is_made_with_scopes_shown_once_limited_and_revoked(boss: Visitor, console_server: Served) -> None:
    nameless = boss.post("do/add-token", namespace=SPACE, pool="default", description=" ", scope="write")
    assert "who will use the token" in nameless.text
    made = boss.post("do/add-token", namespace=SPACE, pool="default", description="billing", scope=["write"]).text
    [secret] = re.findall(r'shown only once.*?<pre tabindex="0" id="secret">([^<]+)</pre>', made, re.DOTALL)

    page = boss.get("access").text
    assert secret not in page
    line = r'<code>(\w+)</code></td><td[^>]*>billing</td>.*?name="token" value="([^"]+)"'
    [(label, key)] = re.findall(line, page, re.DOTALL)
    assert push(console_server, secret) == 201
    reserve = f"{console_server.api}/v1/queues/{SPACE}/mail/reserve"
    assert httpx.post(reserve, json={}, headers={"x-token": secret}, timeout=60).status_code == 403

    boss.post("do/limit", token=key, read="0", write="1", interval="3600")
    assert [push(console_server, secret) for _ in range(2)][1] == 429
    assert "must be a whole number" in boss.post("do/limit", token=key, read="x", write="1", interval="1").text
    boss.post("do/limit", token=key, read="", write="", interval="")
    assert push(console_server, secret) == 201

    boss.post("do/revoke-token", token=key)
    assert push(console_server, secret) == 401
    log = boss.get("audit").text
    assert f'>Revoke token</td><td class="wide">{SPACE} {label}</td>' in log
    assert ">billing: write</td>" in log
    assert secret not in log
    assert secret not in console_server.log.read_text()


@pytest.mark.parametrize("shares", ["0:1", "9" * 5_000 + ":1:1", "5:3:x"])
def test_shares_that_are_none_are_refused_on_the_page(boss: Visitor, shares: str) -> None:
    answer = boss.post("do/shares", namespace="default", shares=shares, back="/console/access")
    assert (answer.status_code, answer.url.path) == (200, "/console/access")
    assert "must be high:normal:low" in answer.text


def test_an_admin_ends_a_session(boss: Visitor) -> None:
    boss.post("do/add-user", name="ida", role="operator", password="works on things")
    assert "at least 10" in boss.post("do/add-user", name="ida", role="viewer", password="short").text
    other = Visitor(boss.admin)
    with other.http:
        assert other.log_in("ida", "works on things").status_code == 200
        assert other.get("access").status_code == 403
        page = boss.get("access").text
        [label] = re.findall(
            r'<strong>ida</strong> <span class="badge ">operator</span> <span.*?name="label" value="(\w+)"', page
        )
        boss.post("do/end-session", label=label)
        assert other.get("queues").url.path == "/console/login"
    boss.post("do/remove-user", name="ida")


class Told(BaseHTTPRequestHandler):
    """An address that alerts are sent to."""

    heard: list[bytes]

    def do_POST(self) -> None:
        self.heard.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def told() -> Iterator[tuple[str, list[bytes]]]:
    heard: list[bytes] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Heard", (Told,), {"heard": heard})) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"json://ann:geheim@127.0.0.1:{server.server_port}/", heard
        server.shutdown()


async def settings_of(served: Served) -> AlertSettings:
    store = await open_store(f"sqlite://{served.log.parent}/jobs.db")
    try:
        return read_settings(await store.registry.get(SETTINGS, KEY))
    finally:
        await store.close()


async def test_who_is_told_is_added_tested_and_removed_and_no_secret_is_shown(
    boss: Visitor, console_server: Served, told: tuple[str, list[bytes]]
) -> None:
    address, heard = told
    assert "No recipients yet" in boss.post("do/test-alert").text
    assert "problem" in boss.post("do/add-address", address="nothing://").text

    boss.post("do/add-address", address=address)
    page = boss.post("do/add-address", address=address, channel="ops").text
    assert "geheim" not in page
    known = await settings_of(console_server)
    assert (known.addresses, known.channels) == ((address,), {"ops": address})
    assert "reached 2 addresses" in boss.post("do/test-alert").text
    assert b"Nothing is wrong" in heard[0]

    [shown] = re.findall(r'name="address" value="(json:[^"]+)"', boss.get("alerts").text)
    boss.post("do/remove-address", address=shown)
    boss.post("do/remove-address", channel="ops")
    known = await settings_of(console_server)
    assert (known.addresses, known.channels) == ((), {})
    assert "geheim" not in boss.get("access").text


async def test_the_mail_server_is_saved_and_its_password_kept_and_not_shown(
    boss: Visitor, console_server: Served
) -> None:
    fields = {"host": "mail.example.com", "port": "587", "sender": "a@example.com", "user": "u", "security": "starttls"}
    assert "is saved" in boss.post("do/mail-server", **fields, password="geheim").text
    assert "must be a whole number" in boss.post("do/mail-server", **{**fields, "port": "99999"}).text
    page = boss.post("do/mail-server", **{**fields, "host": "smtp.example.com"}, password="").text
    assert "geheim" not in page

    server = (await settings_of(console_server)).mail_server
    assert server is not None
    assert (server.host, server.port, server.password) == ("smtp.example.com", 587, "geheim")


class Heard:
    """Takes every mail but those to nobody@example.com."""

    def __init__(self) -> None:
        self.mails: list[Envelope] = []

    async def handle_RCPT(
        self, server: SMTP, session: object, envelope: Envelope, address: str, options: object
    ) -> str:
        if address == "nobody@example.com":
            return "550 no such user"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: object, envelope: Envelope) -> str:
        self.mails.append(envelope)
        return "250 OK"


def test_the_mail_page_sends_a_test_mail_and_says_if_it_was_refused(boss: Visitor) -> None:
    heard = Heard()
    smtp = Controller(heard, hostname="127.0.0.1", port=find_free_port())
    smtp.start()
    try:
        fields = {"host": "127.0.0.1", "port": str(smtp.port), "sender": "a@example.com", "user": ""}
        saved = boss.post("do/mail-server", **fields, security="none").text
        assert "is saved" in saved
        assert 'action="/console/do/test-mail"' in saved
        assert "accepted the test mail to ops@example.com" in boss.post("do/test-mail", to="ops@example.com").text
        assert [mail.rcpt_tos for mail in heard.mails] == [["ops@example.com"]]
        assert "Not reached: nobody@example.com" in boss.post("do/test-mail", to="nobody@example.com").text
        assert "Not a mail address: tgram://1" in boss.post("do/test-mail", to="tgram://1").text
        assert "/console/mail" in boss.get("alerts").text
    finally:
        smtp.stop()


def test_a_leased_job_is_sent_to_the_dead_letters(boss: Visitor, client: duetime.Client) -> None:
    queue = client.queue("to-kill")
    job_id = queue.push("x").id
    assert queue.pop() is not None

    page = boss.post("do/kill", pool="default", namespace="default", queue="to-kill", id=job_id).text
    assert "moved to the failures" in page
    job = queue.get(job_id)
    assert (job.state, job.reason, job.error) == (State.DEAD, "killed", "stopped in the console by boss")


def test_a_new_password_and_a_new_user_of_the_same_name_end_older_sessions(boss: Visitor) -> None:
    def add(password: str) -> None:
        assert boss.post("do/add-user", name="ben", role="operator", password=password).status_code == 200

    add("first password")
    ben = Visitor(boss.admin)
    with ben.http:
        assert ben.log_in("ben", "first password").url.path == "/console/"
        assert ben.get("queues").url.path == "/console/queues"
        add("second password")
        assert ben.get("queues").url.path == "/console/login"

        assert ben.log_in("ben", "second password").url.path == "/console/"
        boss.post("do/remove-user", name="ben")
        assert ben.get("queues").url.path == "/console/login"
        add("second password")
        assert ben.get("queues").url.path == "/console/login"
