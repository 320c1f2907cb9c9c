"""`duetime alert ...` against a real store and a real mail server."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.alerts.conftest import Postbox
from tests.e2e.shell import Ran, Shell
from tests.plugins.serving import serving


@pytest.fixture(params=["store", "server"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A store, or the admin API of a server on one: the commands do the same on both."""
    store = f"sqlite://{tmp_path}/jobs.db"
    if request.param == "store":
        Shell(store, tmp_path).ok("migrate")
        yield store
        return
    with serving(tmp_path, "--dev") as server:
        yield server.admin


async def test_the_story_of_an_address(url: str, postbox: Postbox, tmp_path: Path) -> None:
    shell = Shell(url, tmp_path)

    async def run(*arguments: str) -> Ran:
        return await asyncio.to_thread(shell.run, "alert", *arguments)

    assert "recipient none" in (await run("list")).out
    assert (await run("test")).code != 0
    added = await run("add", "ops@example.com")
    assert added.code == 0
    assert "no mail server" in added.err
    assert "receives alerts now" not in added.out
    failed = await run("test", "--json")
    assert failed.code != 0
    assert failed.documents[0] == {"reached": [], "not_reached": ["ops@example.com"]}
    server = ("--host", "127.0.0.1", "--port", str(postbox.port), "--from", "d@example.com", "--security", "none")
    set_up = await run("mail-server", *server, "--json")
    assert set_up.document["mail_server"]["host"] == "127.0.0.1"
    sent = await run("test", "--json")
    assert sent.document == {"reached": ["ops@example.com"], "not_reached": []}
    assert postbox.subjects == ["Duetime: test alert"]
    shown = (await run("list")).out
    assert "ops@example.com" in shown
    assert re.search(r"^problem   (none|pool default has used)", shown, re.MULTILINE)  # if this disk is nearly full
    assert (await run("remove", "ops@example.com")).code == 0
    assert (await run("remove", "ops@example.com", "--json")).error["code"] in ("address_not_found", "not_found")


def test_a_channel_has_a_name_that_topics_use(tmp_path: Path) -> None:
    shell = Shell(f"sqlite://{tmp_path}/jobs.db", tmp_path)
    topic = ("topic", "add", "pay", "https://shop.example.com/pay", "--alert", "chat", "--json")
    assert shell.run(*topic).error["code"] == "invalid_request"
    added = shell.run("alert", "add", "json://user:secret@127.0.0.1:9/", "--channel", "chat", "--json")
    assert added.document["addresses"] == []
    assert list(added.document["channels"]) == ["chat"]
    assert "secret" not in added.out
    assert shell.run(*topic).document["alert"] == ["chat"]
    assert "chat" in shell.run("alert", "list").out
    assert shell.run("alert", "test", "--json").code != 0  # nobody listens there
    assert shell.run("alert", "remove", "chat", "--json").document["channels"] == {}
    assert shell.run("alert", "add", "a@b.c", "--channel", "no/name", "--json").error["code"] == "invalid_name"


def test_of_two_addresses_that_look_alike_one_is_removed_by_its_full_text(tmp_path: Path) -> None:
    shell = Shell(f"sqlite://{tmp_path}/jobs.db", tmp_path)
    first, second = (
        "tgram://123456789:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA/1",
        "tgram://123456789:BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB/2",
    )
    shell.run("alert", "add", first)
    added = shell.run("alert", "add", second, "--json")
    assert added.document["addresses"] == ["tgram://***", "tgram://***"]
    assert shell.run("alert", "remove", "tgram://***", "--json").error["code"] == "invalid_request"
    assert shell.run("alert", "remove", first, "--json").document["addresses"] == ["tgram://***"]
    assert shell.run("alert", "remove", "tgram://***", "--json").document["addresses"] == []


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    shell = Shell(f"sqlite://{tmp_path}/jobs.db", tmp_path)
    assert shell.run("alert", "add", "not-an-address", "--json").error["code"] == "invalid_request"
    assert shell.run("alert", "list", "--url", "http://127.0.0.1:1", "--json").error["code"] == "store_unavailable"
    password = ("--host", "h", "--from", "a@b.c", "--user", "u", "--password", "secret")
    assert "secret" not in shell.run("alert", "mail-server", *password, "--json").out
