"""The command `duetime`: what the console script calls.

An error of Duetime's is one line on standard error and an exit code, never a traceback:

    0  done
    1  refused or not found: nothing was ready, a lease was lost, a check failed
    2  what was asked for cannot be right: options, settings, a taken port
    3  a store or server does not answer, or has no room
    4  not allowed: no token, or not one for this
    5  a bug in Duetime; `PYTHONDEVMODE=1` shows where
  130  interrupted

With `--json` the line is a JSON document.
"""

import sys

from duetime import __version__

PACKAGES = ("rich", "typer")
"""The extra `cli`."""


def main() -> None:
    if sys.argv[1:] in (["version"], ["--version"]):
        sys.stdout.write(f"{__version__}\n")
        return
    try:
        from duetime.cli.program import run  # noqa: PLC0415 (it takes ten times as long as what is above)
    except ModuleNotFoundError as missing:
        if missing.name not in PACKAGES:
            raise
        sys.stderr.write(f"duetime: commands need the package {missing.name}: pip install 'duetime[cli]'\n")
        sys.exit(2)
    run()
