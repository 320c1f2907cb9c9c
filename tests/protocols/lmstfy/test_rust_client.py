"""The Rust client's own tests, as crates.io has them, on our server. The first run compiles for some minutes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.plugins.serving import serving

CLIENT = "lmstfy-client"
PROJECT = f"""[package]
name = "tests"
version = "0.1.0"

[dependencies]
{CLIENT} = "=0.1.4"
"""


def cargo(folder: Path, *arguments: str, **environment: str) -> str:
    # The target is kept between runs.
    known = {"CARGO_TARGET_DIR": str(Path(sys.prefix) / "cargo"), **os.environ, **environment}
    ran = subprocess.run(
        ["cargo", *arguments], cwd=folder, env=known, capture_output=True, text=True, timeout=1500, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


if shutil.which("cargo"):  # where there is no Rust, the tests of this folder still say the same

    @pytest.mark.timeout(1800)
    def test_the_tests_of_the_rust_client_pass(tmp_path: Path) -> None:
        project = tmp_path / "project"
        (project / "src").mkdir(parents=True)
        (project / "src" / "lib.rs").write_text("")
        (project / "Cargo.toml").write_text(PROJECT)
        packages = json.loads(cargo(project, "metadata", "--format-version", "1"))["packages"]
        [manifest] = [Path(one["manifest_path"]) for one in packages if one["name"] == CLIENT]
        crate = shutil.copytree(manifest.parent, tmp_path / "crate")
        cargo(crate, "test", "--no-run")
        with serving(tmp_path, "--dev") as server:
            at = urlsplit(server.api)
            config = {"host": at.hostname, "port": at.port, "namespace": "rust", "queue_suffix": "x", "token": "any"}
            out = cargo(crate, "test", "--lib", LMSTFY_CLIENT_TEST_CONFIG=json.dumps(config))
        assert "15 passed; 0 failed" in out
