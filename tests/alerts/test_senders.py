"""Alerts reach a real mail server, within a deadline."""

import asyncio
import html
import logging
import re
import sys

import pytest

from duetime.alerts.senders import AlertSender, MailServer, check_address, mail_url
from duetime.model.errors import InvalidRequest
from duetime.model.masking import mask_address
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


async def test_the_log_shows_no_secret_of_an_address_that_is_not_reached(
    caplog: pytest.LogCaptureFixture, free_port: int
) -> None:
    address = f"json://bot:AAHsecret@127.0.0.1:{free_port}/AAHsecret?token=AAHsecret"
    with caplog.at_level(logging.DEBUG):
        assert await AlertSender().send([address], "title", "text") == [address]
    [record] = [one for one in caplog.records if one.getMessage() == "alert_not_sent"]
    assert vars(record)["address"] == f"json://127.0.0.1:{free_port}/***"
    shown = [one for one in caplog.records if one.levelno >= logging.INFO]  # what a server logs
    assert "AAHsecret" not in "".join(f"{one.getMessage()} {vars(one)}" for one in shown)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("ops@example.com", "ops@example.com"),
        ("team-x", "team-x"),
        ("tgram://123:AAHsecret/42/", "tgram://***"),
        ("https://hooks.slack.com/services/T0/B0/SECRET", "https://hooks.slack.com/***"),
        ("https://qyapi.weixin.qq.com/cgi-bin/webhook/send?key=SECRET", "https://qyapi.weixin.qq.com/***"),
        ("json://bot:SECRET@example.com", "json://example.com/***"),
        ("mailto://bot:SECRET@example.com?to=ops@example.com", "mailto://example.com/***"),
        ("json://example.com", "json://example.com"),
    ],
)
def test_an_address_is_shown_without_anything_that_may_be_a_secret(address: str, shown: str) -> None:
    assert mask_address(address) == shown
    assert mask_address(shown) == shown
