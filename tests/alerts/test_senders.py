"""Alerts reach a real mail server, within a deadline."""

import asyncio
import html
import re
import sys

import pytest

from duetime.alerts.senders import AlertSender, MailServer, check_address, mail_url
from duetime.model.errors import InvalidRequest
from tests.alerts.conftest import Postbox


async def test_a_plain_address_gets_a_mail_through_the_mail_server(postbox: Postbox) -> None:
    unreached = await AlertSender().send(["ann@example.com", "bob@example.com"], "Püls", "läuft", server=postbox.server)
    assert unreached == []
    assert sorted(to for to, _ in postbox.mails) == [["ann@example.com"], ["bob@example.com"]]
    assert postbox.subjects == ["Püls", "Püls"]
    assert postbox.text(0).strip() == "läuft"
    assert postbox.mails[0][1]["From"] == "duetime@example.com"


async def test_an_apprise_url_needs_no_mail_server(postbox: Postbox) -> None:
    url = f"mailto://127.0.0.1:{postbox.port}?from=a@example.com&to=b@example.com&mode=insecure"
    assert await AlertSender().send([url], "title", "one <b> line\nand another") == []
    assert postbox.subjects == ["title"]
    lines = re.split(r"<br\s*/?>|\r?\n", html.unescape(postbox.text(0)))
    assert {"one <b> line", "and another"} <= set(lines)


async def test_without_a_mail_server_a_plain_address_is_not_reached() -> None:
    assert await AlertSender().send(["ann@example.com"], "title", "text") == ["ann@example.com"]


async def test_a_process_without_the_package_that_sends_reaches_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    assert await AlertSender().send(["json://127.0.0.1:9/"], "title", "text") == ["json://127.0.0.1:9/"]
    [record] = caplog.records
    assert "pip install" in vars(record)["error"]


async def test_a_server_that_refuses_is_no_success(postbox: Postbox) -> None:
    postbox.refuse = True
    assert await AlertSender().send(["ann@example.com"], "t", "x", server=postbox.server) == ["ann@example.com"]


async def test_a_server_that_hangs_costs_the_deadline_and_holds_up_nobody(postbox: Postbox) -> None:
    postbox.hold = asyncio.Event()
    announcer = AlertSender(deadline_s=0.2)
    assert await announcer.send(["ann@example.com"], "t", "x", server=postbox.server) == ["ann@example.com"]
    assert postbox.mails == []


def test_addresses_are_checked_when_they_are_given() -> None:
    assert check_address("ann@example.com") == "ann@example.com"
    for wrong in ("ann", "nothing://at-all", "", "mailto://"):
        with pytest.raises(InvalidRequest):
            check_address(wrong)


def test_what_a_mail_server_may_be() -> None:
    server = MailServer("smtp.example.com", "d@example.com", 587, "us er", "p@ss:word")
    assert mail_url(server, "ann@example.com").startswith("mailtos://us%20er:p%40ss%3Aword@smtp.example.com:587/?")
    with pytest.raises(InvalidRequest, match="starttls, ssl, none"):
        mail_url(MailServer("h", "d@example.com", security="tls"), "ann@example.com")
