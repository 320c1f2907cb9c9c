"""The command `duetime`: what the console script calls.

An error of Duetime's is one line on standard error and an exit code, never a traceback:

    0  done
    1  refused or not found: nothing was ready, a lease was lost, a check failed, the output cannot be written
    2  invalid options or settings, or a port in use
    3  a store or server does not answer, or has no space
    4  not allowed: the token is missing or does not allow this
    5  a bug in Duetime; `PYTHONDEVMODE=1` shows where
  130  interrupted

With `--json` the line is a JSON document.
"""

import codecs
import io
import json
import os
import sys

from duetime import __version__

PACKAGES = ("rich", "typer")
"""The extra `cli`."""


def prepare_streams() -> None:
    """Opens /dev/null in place of each closed stream, because libraries must not get its number for their own files.
    Characters that the encoding of a stream lacks are written as in JSON: \\u4e2d.
    """
    codecs.register_error("duetime", _escape)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))
        elif number and isinstance(stream, io.TextIOWrapper):  # a program that calls this may have its own
            stream.reconfigure(errors="duetime", encoding="utf-8" if "--json" in sys.argv else None)


def _escape(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def main() -> None:
    prepare_streams()
    if sys.argv[1:] in (["version"], ["--version"]):
        sys.stdout.write(f"{__version__}\n")
        return
    try:
        from duetime.cli.program import run  # noqa: PLC0415 (it takes ten times as long as what is above)
    except ModuleNotFoundError as missing:
        if missing.name not in PACKAGES:
            raise
        extra = "server" if sys.argv[1:2] in (["serve"], ["console"]) else "cli"
        sys.stderr.write(
            f"duetime: commands need the package {missing.name}: "
            f"pip install 'duetime[{extra}]', or with uv: uvx 'duetime[{extra}]'\n"
        )
        sys.exit(2)
    run()
