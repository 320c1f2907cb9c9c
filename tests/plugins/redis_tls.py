"""Redis over TLS, with a certificate that openssl makes for the tests.

`certificate` is for localhost and 127.0.0.1, signs itself and has its key beside it (`key.pem`); no server has
`other_certificate`. `tls_port("no")` starts a Redis with the first and answers its port; with `"yes"` clients must show
a certificate, too. `tls_sentinel_port` is the port of a Sentinel that watches such a Redis under the name `main`.
"""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.plugins.ci import missing_service
from tests.plugins.ports import find_free_port
from tests.plugins.redis_server import RedisServer, Setting
from tests.plugins.redis_topologies import SentinelServer


def make_certificate(folder: Path) -> Path:
    """A certificate that signs itself, in a folder of its own."""
    program = shutil.which("openssl")
    if program is None:
        missing_service("openssl is not installed")
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command = [program, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run(
        [*command, "-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")],
        check=True,
        capture_output=True,
        timeout=90,
    )
    return folder / "cert.pem"


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="session")
def other_certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("other-tls"))


@pytest.fixture
def tls_port(start_redis: Callable[..., RedisServer], certificate: Path) -> Callable[..., int]:
    def start(clients: str) -> int:
        port = find_free_port()
        start_redis(**_tls_settings(port, certificate, clients))
        return port

    return start


@pytest.fixture
def tls_sentinel_port(tls_port: Callable[..., int], certificate: Path, tmp_path: Path) -> Iterator[int]:
    port, folder = find_free_port(), tmp_path / "sentinel"
    folder.mkdir()
    settings = _tls_settings(port, certificate, "no")
    sentinel = SentinelServer(folder, tls_port("no"), **settings, tls_replication="yes")
    sentinel.start()
    try:
        yield port
    finally:
        sentinel.kill()


def _tls_settings(port: int, certificate: Path, clients: str) -> dict[str, Setting]:
    return {
        "tls_port": port,
        "tls_cert_file": str(certificate),
        "tls_key_file": str(certificate.with_name("key.pem")),
        "tls_ca_cert_file": str(certificate),
        "tls_auth_clients": clients,
    }
