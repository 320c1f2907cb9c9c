"""The TCP server behind TLS, with a certificate that signs itself."""

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from duetime.model.errors import InvalidSettings
from duetime.protocols.tcp import CommandRules
from duetime.server.process import read_certificate
from tests.plugins.ci import missing_service
from tests.protocols.tcp.conftest import Site, packed

ADD = {"cmd": "add", "topic": "order", "id": "1001", "body": {"order": 7}, "token": "secret"}
DONE = {"code": 1, "msg": "succ", "data": []}


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificate and key in one file, as `tcp_certificate` wants them."""
    program = shutil.which("openssl")
    if program is None:
        missing_service("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    key, certificate, both = folder / "key.pem", folder / "cert.pem", folder / "both.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = [program, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True, timeout=90)
    both.write_bytes(key.read_bytes() + certificate.read_bytes())
    return both


async def test_a_client_that_trusts_the_certificate_is_served(site: Site, pem: Path) -> None:
    async with site.serving(CommandRules("default", "shop", token="secret"), tls=read_certificate(str(pem))):
        trusting = ssl.create_default_context(cafile=str(pem.with_name("cert.pem")))
        async with site.talk(trusting) as talk:
            assert await talk.call(**ADD) == DONE
            assert (await talk.call(cmd="get", topic="order", id="1001", token="secret"))["data"]["order"] == 7
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection("127.0.0.1", site.port, ssl=ssl.create_default_context())


async def test_a_client_without_tls_gets_no_reply_and_the_next_one_is_served(site: Site, pem: Path) -> None:
    async with site.serving(tls=read_certificate(str(pem))):
        async with site.talk() as plain:
            await plain.send(packed(ADD))
            assert b'"code"' not in await plain.reader.read()
        async with site.talk(ssl.create_default_context(cafile=str(pem.with_name("cert.pem")))) as talk:
            assert await talk.call(**ADD) == DONE


@pytest.mark.parametrize("text", [None, "no certificate"])
def test_a_file_that_is_no_certificate_is_named(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "wrong.pem"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InvalidSettings, match=r"tcp_certificate .*wrong\.pem cannot be read"):
        read_certificate(str(path))
