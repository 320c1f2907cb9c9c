"""The command `duetime` inside the command line of a framework, for the App of that program."""

import os
import sys
from collections.abc import Sequence

from duetime.cli.program import run
from duetime.model.names import DEFAULT_NAMESPACE
from duetime.worker.app import App

PLACE = f"{__name__}:app"


def run_command(app: App, arguments: Sequence[str]) -> None:
    """Run a command as `duetime` would, on the App's store or server, and exit. `work` needs no name of the App."""
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
