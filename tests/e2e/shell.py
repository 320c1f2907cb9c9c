"""`duetime` as a shell runs it: arguments and standard input in, output and exit code out.

`spawn` starts the installed program. `run` calls what that program calls, in this process, with streams and environment
of its own: a process that has to import everything takes a second on a busy machine, and a story has a dozen commands.
"""

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from duetime.cli.main import main

DEADLINE_S = 120


def program() -> list[str]:
    """The console script beside this interpreter, else the module behind it."""
    script = Path(sys.executable).with_name("duetime")
    return [str(script)] if script.exists() else [sys.executable, "-c", "from duetime.cli.main import main; main()"]


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def documents(self) -> list[dict[str, Any]]:
        """Every line of standard output as JSON."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def document(self) -> dict[str, Any]:
        [only] = self.documents
        return only

    @property
    def error(self) -> dict[str, Any]:
        """The last line of standard error as a JSON error."""
        return json.loads(self.err.splitlines()[-1])["error"]


@dataclass(frozen=True)
class Shell:
    """Runs commands in a folder, with this URL in the environment."""

    url: str
    folder: Path

    def spawn(self, *arguments: str, stdin: str | bytes = b"", **environment: str) -> Ran:
        ran = subprocess.run(
            [*program(), *arguments],
            input=_bytes(stdin),
            capture_output=True,
            timeout=DEADLINE_S,
            cwd=self.folder,
            env=self.environment(**environment),
            check=False,
        )
        return Ran(ran.returncode, ran.stdout.decode(), ran.stderr.decode())

    def run(self, *arguments: str, stdin: str | bytes = b"", **environment: str) -> Ran:
        out, err = _stream(), _stream()
        with (
            redirect_stdout(out),
            redirect_stderr(err),
            mock.patch.object(sys, "stdin", _stream(_bytes(stdin))),
            mock.patch.object(sys, "argv", ["duetime", *arguments]),
            mock.patch.dict(os.environ, self.environment(**environment), clear=True),
            _folder(self.folder),
        ):
            code: object = 0
            try:
                main()
            except SystemExit as end:
                code = end.code
        return Ran(code if isinstance(code, int) else 0, _text(out), _text(err))

    def environment(self, **more: str) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("DUETIME_")}
        url = {"DUETIME_URL": self.url} if self.url else {}
        return {**inherited, **url, "NO_COLOR": "1", "COLUMNS": "120", **more}

    def ok(self, *arguments: str, stdin: str | bytes = b"", **environment: str) -> Ran:
        """As `run`, for what must succeed."""
        ran = self.run(*arguments, stdin=stdin, **environment)
        assert ran.code == 0, f"exit {ran.code}: {ran.err}"
        return ran

    def json(self, *arguments: str, stdin: str | bytes = b"") -> list[dict[str, Any]]:
        return self.ok(*arguments, "--json", stdin=stdin).documents


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def _stream(content: bytes = b"") -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8", write_through=True)


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    stream.seek(0)
    return stream.read()


@contextmanager
def _folder(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
