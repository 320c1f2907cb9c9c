"""Redis over TLS, with a certificate that openssl makes for the tests.

`certificate` is for localhost and 127.0.0.1, signs itself and has its key beside it (`key.pem`). `tls_port("no")`
starts a Redis with it and answers its port; with `"yes"` clients must show a certificate, too.
"""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.plugins.ci import missing_service
from tests.plugins.ports import find_free_port
from tests.plugins.redis_server import RedisServer


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = shutil.which("openssl")
    if program is None:
        missing_service("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command = [program, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run(
        [*command, "-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")],
        check=True,
        capture_output=True,
        timeout=30,
    )
    return folder / "cert.pem"


@pytest.fixture
def tls_port(start_redis: Callable[..., RedisServer], certificate: Path) -> Callable[..., int]:
    def start(clients: str) -> int:
        port = find_free_port()
        start_redis(
            tls_port=port,
            tls_cert_file=str(certificate),
            tls_key_file=str(certificate.with_name("key.pem")),
            tls_ca_cert_file=str(certificate),
            tls_auth_clients=clients,
        )
        return port

    return start
