"""A mail server that keeps what it gets."""

import asyncio
from collections.abc import AsyncIterator
from email import message_from_bytes
from email.header import decode_header, make_header
from email.message import Message

import pytest
from aiosmtpd.smtp import SMTP, Envelope, Session

from duetime.alerts.senders import MailServer
from tests.plugins.until import until


class Postbox:
    """Every mail that arrived, oldest first. `hold` makes the server silent, `refuse` unwilling."""

    def __init__(self) -> None:
        self.mails: list[tuple[list[str], Message]] = []
        self.port = 0
        self.hold: asyncio.Event | None = None
        self.refuse = False

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        if self.hold:
            await self.hold.wait()
        if self.refuse:
            return "554 not today"
        assert isinstance(envelope.content, bytes)
        self.mails.append((envelope.rcpt_tos, message_from_bytes(envelope.content)))
        return "250 thank you"

    @property
    def server(self) -> MailServer:
        return MailServer("127.0.0.1", "duetime@example.com", self.port, security="none")

    @property
    def subjects(self) -> list[str]:
        return [str(make_header(decode_header(mail["Subject"]))) for _, mail in self.mails]

    def text(self, number: int) -> str:
        part = self.mails[number][1]
        while part.is_multipart():
            part = part.get_payload(0)
        payload = part.get_payload(decode=True)
        assert isinstance(payload, bytes)
        return payload.decode()

    async def wait_for(self, number: int) -> None:
        await until(lambda: len(self.mails) >= number)


@pytest.fixture
async def postbox() -> AsyncIterator[Postbox]:
    box = Postbox()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: SMTP(box, loop=loop), "127.0.0.1", 0)
    box.port = server.sockets[0].getsockname()[1]
    yield box
    if box.hold:
        box.hold.set()
    server.close()
    await server.wait_closed()
