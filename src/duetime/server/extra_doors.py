"""The doors on ports of their own, both off by default: php-delayqueue's TCP protocol and ouqiang's HTTP protocol."""

import socket
import ssl
from collections.abc import Sequence

from starlette.types import ASGIApp

from duetime.model.errors import InvalidSettings
from duetime.protocols.local_guard import local_only
from duetime.protocols.ouqiang import OuqiangDoor
from duetime.protocols.tcp import TcpDoor, TcpOptions
from duetime.protocols.tcp.commands import CommandRules, Commands
from duetime.server.apps import Runtime


def tcp_door(runtime: Runtime, sockets: Sequence[socket.socket]) -> TcpDoor:
    settings = runtime.settings
    rules = CommandRules(settings.tcp_pool, settings.tcp_namespace, settings.tcp_token, settings.tcp_update_fails)
    options = TcpOptions(tls=read_certificate(settings.tcp_certificate), access_log=runtime.lmstfy.access_log)
    return TcpDoor(Commands(runtime.callbacks.service.jobs, rules), sockets, options)


def ouqiang_app(runtime: Runtime) -> ASGIApp:
    settings = runtime.settings
    door = OuqiangDoor(
        lambda: runtime.pools.engine(settings.ouqiang_pool),
        settings.ouqiang_namespace,
        token=settings.ouqiang_token,
        tries=settings.ouqiang_tries,
        max_body=settings.max_body,
    )
    return runtime.lmstfy.access_log.around(door if settings.ouqiang_token else local_only(door))


def read_certificate(certificate: str) -> ssl.SSLContext | None:
    """Raises InvalidSettings for a file that is none."""
    if not certificate:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate)
    except OSError as error:
        raise InvalidSettings(f"tcp_certificate {certificate} cannot be read: {error}") from None
    return context
