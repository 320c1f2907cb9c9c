"""Flask: an App out of the configuration, the application's context around runs, and `flask duetime ...`.

    web = Flask(__name__)
    web.config["DUETIME_URL"] = "sqlite:jobs.db"
    jobs = make_app(web)

    @jobs.task
    def send(to: str) -> None:
        mail.send(current_app.config["SENDER"], to)

`flask --app shop duetime work` runs the jobs; so does `duetime work shop:jobs`.
"""

import inspect
from collections.abc import Callable
from typing import Any

import click
from flask import Flask

from duetime.frameworks import run_command
from duetime.worker.app import App
from duetime.worker.current_job import CurrentJob


def make_app(web: Flask) -> App:
    """Reads DUETIME_URL, DUETIME_NAMESPACE, DUETIME_TOKEN and DUETIME_QUEUE of the configuration; without a URL the
    environment's is used. The App is also `web.extensions["duetime"]`.
    """
    config: dict[str, Any] = {**web.config}
    names = ("url", "namespace", "token", "queue")
    app = App(**{name: config[key] for name in names if config.get(key := f"DUETIME_{name.upper()}") is not None})

    async def in_context_async(call: Callable[[], Any]) -> Any:
        with web.app_context():
            return await call()

    def in_context(job: CurrentJob, call: Callable[[], Any]) -> Any:
        if inspect.iscoroutinefunction(call):
            return in_context_async(call)
        with web.app_context():
            return call()

    app.use(in_context)
    web.extensions["duetime"] = app

    @web.cli.command("duetime", context_settings={"ignore_unknown_options": True}, add_help_option=False)
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def duetime(arguments: tuple[str, ...]) -> None:  # pyright: ignore[reportUnusedFunction]
        """Commands of Duetime; `work` runs the jobs of this application."""
        run_command(app, arguments)

    return app
