"""Sends alerts by mail, Slack, DingTalk, Feishu and every other service that `apprise` supports.

An address is one of its URLs (`slack://...`, `mailto://...`) or a plain mail address, which goes through the mail
server of the alert settings. The library is synchronous and its servers may hang, so every address gets a thread of its
own and a deadline; threads that hang do not keep the process from ending.
"""

import asyncio
import logging
import threading
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlencode

from msgspec import Struct

from duetime.model.errors import InvalidRequest, InvalidSettings
from duetime.model.masking import mask, mask_address
from duetime.model.names import is_host, is_mail

log = logging.getLogger("duetime.alerts")

DEADLINE_S = 15.0
MAX_THREADS = 8
"""Sends under way, hanging ones included."""


class MailServer(Struct, frozen=True, omit_defaults=True):
    """The server that sends to plain mail addresses. `security` is starttls, ssl or none."""

    host: str
    sender: str
    port: int = 0
    user: str = ""
    password: str = ""
    security: str = "starttls"


MAX_PORT = 65_535
SECURITIES = {"starttls": ("mailtos", "starttls"), "ssl": ("mailtos", "ssl"), "none": ("mailto", "insecure")}


def check_address(address: str) -> str:
    """Raises InvalidRequest for an address that no alert can reach."""
    if not is_mail(address) and _plugin(address) is None:
        raise InvalidRequest(
            f"alert address must be a mail address or a URL that apprise knows, got {mask_address(address)}"
        )
    return address


def check_mail_server(server: MailServer) -> MailServer:
    """Raises InvalidRequest for a server that no mail can be sent through."""
    mail_url(server, server.sender)
    if not is_host(server.host):
        raise InvalidRequest(f"mail server host must be a host name or an IP address, got {server.host!r}")
    if not is_mail(server.sender):
        raise InvalidRequest(f"mail server sender must be a mail address, got {server.sender!r}")
    if not 0 <= server.port <= MAX_PORT:
        raise InvalidRequest(f"mail server port must be from 0 to {MAX_PORT}, got {server.port}")
    return server


def mail_url(server: MailServer, address: str) -> str:
    """The apprise URL of a plain mail address."""
    if server.security not in SECURITIES:
        raise InvalidRequest(f"mail server security must be one of {', '.join(SECURITIES)}, got {server.security!r}")
    scheme, mode = SECURITIES[server.security]
    login = f"{quote(server.user, safe='')}:{quote(server.password, safe='')}@" if server.user else ""
    port = f":{server.port}" if server.port else ""
    options = {"from": server.sender, "to": address, "smtp": server.host, "mode": mode, "format": "text"}
    return f"{scheme}://{login}{server.host}{port}/?{urlencode(options)}"


class AlertSender:
    """Sends to many addresses concurrently."""

    def __init__(self, deadline_s: float = DEADLINE_S) -> None:
        self._deadline_s = deadline_s
        self._slots = asyncio.Semaphore(MAX_THREADS)

    async def send(
        self, addresses: Sequence[str], title: str, text: str, *, server: MailServer | None = None
    ) -> list[str]:
        """The addresses that were not reached, each with its reason in the log."""
        answers = await asyncio.gather(*(self._send(address, title, text, server) for address in addresses))
        return [address for address, sent in zip(addresses, answers, strict=True) if not sent]

    async def _send(self, address: str, title: str, text: str, server: MailServer | None) -> bool:
        why = "the address is not understood"
        try:
            url = address
            if is_mail(address):
                if server is None:
                    raise InvalidRequest("no mail server is set: duetime alert mail-server --host HOST --from ADDRESS")
                url = mail_url(server, address)
            if (plugin := _plugin(url)) is not None:
                async with asyncio.timeout(self._deadline_s):
                    if await self._in_a_thread(plugin, title, text):
                        return True
                    why = "it was refused"
        except TimeoutError:
            why = f"no answer within {self._deadline_s:g} s"
        except (InvalidRequest, InvalidSettings) as error:
            why = error.message
        log.warning("alert_not_sent", extra={"address": mask_address(address), "error": why, "title": title})
        return False

    async def _in_a_thread(self, plugin: Any, title: str, text: str) -> bool:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[bool] = loop.create_future()

        def finish(sent: bool) -> None:
            self._slots.release()
            if not done.done():
                done.set_result(sent)

        def work() -> None:
            try:
                sent = _notify(plugin, title, text)
            except Exception as error:  # plugins have many authors, and raise anything
                log.warning("alert_plugin_failed", extra={"error": mask(str(error))})
                sent = False
            if not loop.is_closed():
                loop.call_soon_threadsafe(finish, sent)

        await self._slots.acquire()
        threading.Thread(target=work, name="duetime-alert", daemon=True).start()
        return await done


def _notify(plugin: Any, title: str, text: str) -> bool:
    """Lines stay lines and `<` stays `<`, also where the plugin writes HTML."""
    import apprise  # noqa: PLC0415  # there is a plugin, so it is there

    library: Any = apprise
    receivers: Any = library.Apprise()
    receivers.add(plugin)
    return bool(receivers.notify(title=title, body=text, body_format=library.NotifyFormat.TEXT))


def _plugin(url: str) -> Any:
    """The plugin for a URL, None if there is none."""
    try:
        # Slow to import: only a process that sends alerts imports it.
        import apprise  # noqa: PLC0415
    except ModuleNotFoundError as missing:
        raise InvalidSettings.lacks("sending alerts", "server", missing) from None
    library: Any = apprise
    return library.Apprise.instantiate(url, suppress_exceptions=True)
