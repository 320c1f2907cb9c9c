"""PostgreSQL and MariaDB over TLS: the store believes a server only if its certificate is one that the URL names."""

import os
import pwd
import shutil
import ssl
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from duetime.model.errors import StoreUnavailable
from duetime.model.job import NewJob
from duetime.model.names import Queue
from duetime.stores.base import Push
from duetime.stores.mysql.connection import MysqlAddress, open_connection
from duetime.stores.open import open_store
from tests.plugins.mysql_server import MysqlServer
from tests.plugins.postgres_server import PostgresServer

QUEUE = Queue("shop", "mail")


@contextmanager
def files_for(user: str, certificate: Path) -> Iterator[tuple[Path, Path]]:
    """Copies of a certificate and its key that only a server's user can read; pytest's folders are root's."""
    with tempfile.TemporaryDirectory(prefix="duetime-tls-") as folder:
        os.chmod(folder, 0o755)
        copies = [Path(shutil.copy(file, folder)) for file in (certificate, certificate.with_name("key.pem"))]
        for copy in copies:
            copy.chmod(0o600)
            if os.getuid() == 0:
                owner = pwd.getpwnam(user)
                os.chown(copy, owner.pw_uid, owner.pw_gid)
        yield copies[0], copies[1]


async def push_one(url: str) -> None:
    store = await open_store(url)
    try:
        await store.push(QUEUE, [Push([NewJob("a", b"body")])])
        assert [count.ready for count in await store.counts([QUEUE])] == [1]
    finally:
        await store.close()


@pytest.mark.store_kind("postgres")
async def test_postgresql_shows_the_certificate_that_the_url_names(
    start_postgres: Callable[..., PostgresServer], certificate: Path, other_certificate: Path
) -> None:
    with files_for("postgres", certificate) as (shown, key):
        server = start_postgres(ssl="on", ssl_cert_file=str(shown), ssl_key_file=str(key))
        server.stop()
        (server.folder / "data" / "pg_hba.conf").write_text("hostssl all all all trust\n")
        server.start()
        await push_one(f"{server.url}?sslmode=verify-full&sslrootcert={certificate}")
        with pytest.raises(StoreUnavailable, match="certificate verify failed"):
            await open_store(f"{server.url}?sslmode=verify-full&sslrootcert={other_certificate}")
        with pytest.raises(StoreUnavailable, match="no encryption"):
            await open_store(f"{server.url}?sslmode=disable")


@pytest.mark.store_kind("mysql")
async def test_mariadb_shows_the_certificate_that_the_url_names(
    start_mysql: Callable[..., MysqlServer], certificate: Path, other_certificate: Path
) -> None:
    with files_for("mysql", certificate) as (shown, key):
        server = start_mysql(ssl_cert=str(shown), ssl_key=str(key))
        server.administer("ALTER USER duetime@'%' REQUIRE SSL")
        url = server.url.partition("?")[0]
        await push_one(f"{url}?ssl_ca={certificate}")
        for mode in ("verify_identity", "verify_ca"):
            with pytest.raises(StoreUnavailable, match="certificate verify failed"):
                await open_store(f"{url}?ssl_mode={mode}&ssl_ca={other_certificate}")
        with pytest.raises(StoreUnavailable, match="denied"):
            await open_store(f"{url}?ssl_mode=disabled")


@pytest.mark.store_kind("mysql")
@pytest.mark.parametrize("tls", ["offered", "not offered"])
async def test_a_connection_to_mariadb_reads_no_unneeded_certificates(
    start_mysql: Callable[..., MysqlServer], certificate: Path, monkeypatch: pytest.MonkeyPatch, tls: str
) -> None:
    """All certificates of the system take a tenth of a second and megabytes for each connection."""
    with files_for("mysql", certificate) as (shown, key):
        server = start_mysql(**({"ssl_cert": str(shown), "ssl_key": str(key)} if tls == "offered" else {"skip_ssl": 1}))
        monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda *_: pytest.fail("certificates are read"))
        address = MysqlAddress.parse(server.url.partition("?")[0])
        with open_connection(address) as connection, connection.cursor() as cursor:
            cursor.execute("SHOW STATUS LIKE 'Ssl_cipher'")
            [(_, cipher)] = cursor.fetchall()
    assert bool(cipher) == (tls == "offered")
