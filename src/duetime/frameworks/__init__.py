"""Duetime inside web frameworks: Django, Flask, and ASGI ones such as FastAPI and Starlette.

Each module imports its framework, so import only the one that you use. `run_command` is the command `duetime` inside
the command line of a framework.
"""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from duetime.model.names import DEFAULT_NAMESPACE

if TYPE_CHECKING:
    from duetime.worker.app import App

PLACE = f"{__name__}:app"


def run_command(app: "App", arguments: Sequence[str]) -> None:
    """Run a command as `duetime` would, on the App's store or server, and exit. `work` needs no name of the App."""
    from duetime.cli.program import run  # noqa: PLC0415 (only commands need it)

    given = list(arguments)
    if given[:1] == ["work"]:
        setattr(sys.modules[__name__], "app", app)  # noqa: B010 (where PLACE is looked for)
        given.insert(1, PLACE)
    os.environ["DUETIME_URL"] = app.url
    if app.token:
        os.environ["DUETIME_TOKEN"] = app.token
    if app.namespace != DEFAULT_NAMESPACE:
        os.environ["DUETIME_NAMESPACE"] = app.namespace
    sys.argv = ["duetime", *given]
    run()
