"""What stands between a client and its server: TLS, a proxy, a user and a password, a path in front.

Each client runs in a process of its own, because the proxies and the certificates come from its environment.
"""

import base64
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.plugins.serving import serving

BLOCKING = """
import sys, duetime
with duetime.connect(sys.argv[1]) as client:
    client.queue("mail").push("hello", id="a")
    with client.queue("mail").take("1m") as job:
        print(job.text())
"""
ASYNC = """
import asyncio, sys, duetime
async def main():
    async with duetime.connect_async(sys.argv[1]) as client:
        await client.queue("mail").push("hello", id="a")
        async with client.queue("mail").take("1m") as job:
            print(job.text())
asyncio.run(main())
"""
CLIENTS = {"blocking": BLOCKING, "async": ASYNC}


@pytest.fixture(scope="module")
def server_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with serving(tmp_path_factory.mktemp("server"), "--dev") as served:
        yield int(served.api.rpartition(":")[2])


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Push and take a job through a URL, with these variables and no proxy but theirs."""

    def run(url: str, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        command = [sys.executable, "-c", CLIENTS[request.param], url]
        return subprocess.run(
            command, env={**kept, **environment}, capture_output=True, text=True, timeout=150, check=False
        )

    return run


def pump(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):
        while data := one.recv(65536):
            other.sendall(data)
    for end in (one, other):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def join(one: socket.socket, other: socket.socket) -> None:
    back = threading.Thread(target=pump, args=[other, one], daemon=True)
    back.start()
    pump(one, other)
    back.join()
    one.close()
    other.close()


def whole(one: socket.socket) -> bytes:
    """A request or an answer with its body."""
    text = b""
    while True:
        head, end, body = text.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
        if end and len(body) >= int(length[1] if length else 0):
            return text
        if not (data := one.recv(65536)):
            return text
        text += data


@contextmanager
def listener(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Serve every connection in a thread; answers the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def one(connection: socket.socket) -> None:
            with suppress(OSError):  # a client that does not trust the certificate goes away
                serve(connection)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=one, args=[server.accept()[0]], daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


@contextmanager
def tls(certificate: Path, port: int) -> Iterator[int]:
    """Ends TLS in front of a port, as nginx does."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))

    def serve(connection: socket.socket) -> None:
        secure = context.wrap_socket(connection, server_side=True)
        join(secure, socket.create_connection(("127.0.0.1", port)))

    with listener(serve) as at:
        yield at


@contextmanager
def proxy(heads: list[str], password: str = "") -> Iterator[int]:
    """An HTTP proxy: it forwards requests with a whole URL, and connects for CONNECT; `heads` is what it was asked."""

    def serve(connection: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            if not (data := connection.recv(65536)):
                return
            head += data
        text = head.decode("latin-1")
        heads.append(text.partition("\r\n\r\n")[0])
        method, target, _ = text.split("\r\n", 1)[0].split(" ")
        if password and f"basic {password}" not in text.lower().replace(password.lower(), password):
            connection.sendall(b"HTTP/1.1 407 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            connection.close()
            return
        address = target if method == "CONNECT" else target.partition("://")[2].partition("/")[0]
        host, _, port = address.rpartition(":")
        other = socket.create_connection((host, int(port)))
        if method == "CONNECT":
            connection.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
        else:
            other.sendall(head.replace(f"http://{address}".encode(), b"", 1))
        join(connection, other)

    with listener(serve) as at:
        yield at


def worked(ran: subprocess.CompletedProcess[str]) -> bool:
    assert ran.returncode == 0, ran.stderr
    return ran.stdout == "hello\n"


Client = Callable[..., subprocess.CompletedProcess[str]]


def test_https_with_a_certificate_that_is_trusted(client: Client, certificate: Path, server_port: int) -> None:
    with tls(certificate, server_port) as port:
        assert worked(client(f"https://localhost:{port}", SSL_CERT_FILE=str(certificate)))


def test_https_with_an_unknown_certificate(client: Client, certificate: Path, server_port: int) -> None:
    with tls(certificate, server_port) as port:
        ran = client(f"https://localhost:{port}")
    assert ran.returncode != 0
    assert "StoreUnavailable" in ran.stderr
    assert "certificate" in ran.stderr.lower()


def test_https_with_the_certificate_of_another_host(client: Client, certificate: Path, server_port: int) -> None:
    with tls(certificate, server_port) as port:
        ran = client(f"https://127.0.0.2:{port}", SSL_CERT_FILE=str(certificate))
    assert ran.returncode != 0
    assert "StoreUnavailable" in ran.stderr


def test_http_through_a_proxy_with_a_password(client: Client, server_port: int) -> None:
    heads: list[str] = []
    password = base64.b64encode(b"me:s/cret").decode()
    with proxy(heads, password) as port:
        at = f"http://me:s%2Fcret@127.0.0.1:{port}"
        assert worked(client(f"http://127.0.0.1:{server_port}", HTTP_PROXY=at, http_proxy=at))
    assert heads
    assert all(head.split(" ")[1].startswith(f"http://127.0.0.1:{server_port}/v1/") for head in heads)


def test_https_through_a_proxy(client: Client, certificate: Path, server_port: int) -> None:
    heads: list[str] = []
    password = base64.b64encode(b"me:secret").decode()
    with tls(certificate, server_port) as secure, proxy(heads, password) as port:
        at = f"http://me:secret@127.0.0.1:{port}"
        ran = client(f"https://localhost:{secure}", HTTPS_PROXY=at, https_proxy=at, SSL_CERT_FILE=str(certificate))
        assert worked(ran)
    assert {head.split(" ")[0] for head in heads} == {"CONNECT"}
    assert all("authorization: bearer" not in head.lower() for head in heads)


def test_no_proxy_names_hosts_that_are_asked_directly(client: Client, server_port: int) -> None:
    heads: list[str] = []
    with proxy(heads) as port:
        at = f"http://127.0.0.1:{port}"
        names = {"HTTP_PROXY": at, "http_proxy": at, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        assert worked(client(f"http://127.0.0.1:{server_port}", **names))
    assert heads == []


def test_a_user_and_a_password_in_the_url(client: Client, server_port: int) -> None:
    """They go to the server as basic authentication, and into no error."""
    heads: list[str] = []

    def serve(connection: socket.socket) -> None:
        head = connection.recv(65536)
        heads.append(head.decode("latin-1"))
        other = socket.create_connection(("127.0.0.1", server_port))
        other.sendall(head)
        join(connection, other)

    with listener(serve) as port:
        assert worked(client(f"http://me:s%40cret@127.0.0.1:{port}"))
    expected = "basic " + base64.b64encode(b"me:s@cret").decode()
    assert expected.lower() in heads[0].lower()
    away = client(f"http://me:s%40cret@127.0.0.1:{port}")
    assert away.returncode != 0
    assert "s%40cret" not in away.stderr.replace("sys.argv", "")
    assert "s@cret" not in away.stderr


def test_a_path_in_front_of_the_api(client: Client, server_port: int) -> None:
    def serve(connection: socket.socket) -> None:
        other = socket.create_connection(("127.0.0.1", server_port))
        other.sendall(whole(connection).replace(b" /queue/v1/", b" /v1/", 1))
        connection.sendall(whole(other).replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1))
        connection.close()
        other.close()

    with listener(serve) as port:
        assert worked(client(f"http://127.0.0.1:{port}/queue"))
