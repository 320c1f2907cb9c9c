"""Frames that no honest client sends: fail, or the end of the conversation; never a traceback, and others go on."""

import logging

import pytest

from duetime.model.job import NewJob
from duetime.protocols.tcp import CommandRules
from tests.protocols.tcp.conftest import PLACE, Site
from tests.protocols.tcp.test_commands import DONE, FAILED, add


def framed(text: bytes) -> bytes:
    return b"%04d%b" % (len(text), text)


@pytest.fixture(autouse=True)
def _no_tracebacks(caplog: pytest.LogCaptureFixture) -> object:
    yield
    assert not [record for record in caplog.get_records("call") if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    "text",
    [
        b'{"cmd": "add", "topic": "order", "id": "\xff"}',
        b'{"cmd": "\xc3"}',
        b"\xff\xfe",
        b'{"cmd": "get", "topic": "order", "id": "\\ud800"}',
        b"[" * 9_000,
        b'{"x": ' * 1_500,
        b"[]",
        b"null",
        b'{"cmd": NaN}',
        b'{"cmd": "get", "topic": "order", "id": %b}' % (b"9" * 5_000),
        b'{"cmd": "add", "topic": "order", "id": "1", "body": {"a": %b}}' % (b"9" * 5_000),
        b'{"cmd": "get", "topic": "order", "id": -1e400}',
    ],
    ids=range(12),
)
async def test_what_is_not_json_ends_the_conversation(site: Site, text: bytes) -> None:
    async with site.serving(), site.talk() as talk, site.talk() as other:
        await talk.send(framed(text))
        assert await talk.is_closed()
        assert await add(other) == DONE


@pytest.mark.parametrize(
    "fields",
    [
        b'"topic": "order", "id": "", "body": {}',
        b'"topic": "order", "id": [1], "body": {}',
        b'"topic": "a b", "id": "1", "body": {}',
        b'"topic": 1.5, "id": "1", "body": {}',
        b'"topic": "order", "id": "1", "body": {}, "fix_time": "tomorrow"',
        b'"topic": "order", "id": "1", "body": {}, "fix_time": 7',
        b'"topic": "order", "id": {"a": 1}',
        b'"topic": "order", "id": "1", "id": null',
        b'"topic": "a\\r\\nb", "id": "1"',
        b'"topic": "order", "id": "a\\u0000b", "body": {}',
        b'"topic": "order", "id": "1", "body": "' + b"[" * 5_000 + b'"',
        b'"topic": "order", "id": "1", "body": "{\\"a\\": \\"\\\\ud800\\"}"',
        b'"topic": "order", "id": "1", "body": {"a": 1}, "fix_time": "' + b"9" * 5_000 + b'"',
        b'"topic": "order", "id": "1", "body": {"a": 1}, "fix_time": "99999-99-99 99:99:99"',
        b'"topic": "order", "id": "1", "body": {"a": 1}, "fix_time": ' + b"9" * 400,
    ],
    ids=range(15),
)
async def test_what_cannot_be_added_fails_and_the_conversation_goes_on(site: Site, fields: bytes) -> None:
    async with site.serving(), site.talk() as talk:
        await talk.send(framed(b'{"cmd": "add", %b}' % fields))
        assert await talk.receive() == FAILED
        assert await add(talk) == DONE


@pytest.mark.parametrize("body", [b"\xff", b'"\xff"', b"[" * 2_000, b'"\\ud800"', b"9" * 5_000, b"\xf0\x9f" * 2_000])
async def test_a_body_of_another_protocol_is_shown_somehow(site: Site, body: bytes) -> None:
    await site.pools.engine("default").push(PLACE.queue, [NewJob("1", body)])
    async with site.serving(), site.talk() as talk:
        assert (await talk.call(cmd="get", topic="order", id="1"))["code"] in (0, 1)
        assert await add(talk, "2") == DONE


@pytest.mark.parametrize("token", ["schlüssel", "密钥"])
async def test_a_token_is_its_bytes_in_utf_8(site: Site, token: str) -> None:
    async with site.serving(CommandRules("default", "shop", token=token)), site.talk() as talk:
        assert await add(talk, token=token) == DONE
        assert await add(talk, token=["x"]) == FAILED
