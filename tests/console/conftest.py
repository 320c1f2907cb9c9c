"""One server with accounts for all tests of the console, and a visitor who speaks to it as a browser would."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import duetime
from tests.e2e.shell import Shell
from tests.plugins.passwords import hashed
from tests.plugins.serving import Served, serving
from tools.console_assets import TARGET, fetch

ACCOUNT = ("boss", "correct horse battery")


class Visitor:
    """A browser without JavaScript: keeps cookies, follows redirects, sends Origin with forms."""

    def __init__(self, admin: str) -> None:
        self.admin = admin
        self.http = httpx.Client(base_url=admin, follow_redirects=True, timeout=30)

    def get(self, path: str, **query: str) -> httpx.Response:
        return self.http.get(f"/console/{path}", params=query)

    def post(self, path: str, *, origin: str | None = None, **fields: str | list[str]) -> httpx.Response:
        return self.http.post(f"/console/{path}", data=fields, headers={"origin": origin or self.admin})

    def log_in(self, user: str, password: str) -> httpx.Response:
        return self.post("login", user=user, password=password)


@pytest.fixture(scope="session")
def console_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    fetch(TARGET)  # a tree that was updated may lack a font or a script
    folder: Path = tmp_path_factory.mktemp("console")
    (folder / "duetime.toml").write_text(
        f'[accounts]\n{ACCOUNT[0]} = "{hashed(ACCOUNT[1])}"\n[pool.second]\nstore = "sqlite:{folder}/second.db"\n'
    )
    with serving(folder, DUETIME_CALLBACK_ALLOW="127.0.0.0/8", DUETIME_TRUSTED_PROXIES="127.0.0.1") as served:
        yield served
    # What visitors do, closing a live page included, is no error of the server.
    assert "Traceback" not in served.log.read_text()


@pytest.fixture
def visitor(console_server: Served) -> Iterator[Visitor]:
    """A stranger."""
    found = Visitor(console_server.admin)
    with found.http:
        yield found


@pytest.fixture
def boss(visitor: Visitor) -> Visitor:
    """Logged in as an admin."""
    assert visitor.log_in(*ACCOUNT).status_code == 200
    return visitor


@pytest.fixture
def client(console_server: Served) -> Iterator[duetime.Client]:
    """The server's own store, opened beside it."""
    store = f"sqlite://{console_server.log.parent}/jobs.db"
    with duetime.connect(store) as connected:
        yield connected


@pytest.fixture
def remote(console_server: Served) -> Iterator[duetime.Client]:
    """The server's API, with a token."""
    folder = console_server.log.parent
    [made] = Shell(f"sqlite://{folder}/jobs.db", folder).json("token", "create", "--namespace", "default")
    with duetime.connect(console_server.api, token=made["token"]) as connected:
        yield connected
