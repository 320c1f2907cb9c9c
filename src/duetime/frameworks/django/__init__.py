"""Django: an App out of the settings, tasks that wait for the commit, `manage.py duetime ...`, queues in the admin.

    INSTALLED_APPS = [..., "duetime.frameworks.django"]
    DUETIME = {"URL": "redis://localhost/0", "CONSOLE": "https://jobs.example.com/console"}

    # shop/tasks.py; the module `tasks` of every installed app is imported
    from duetime.frameworks.django import app

    @app.task
    def send(order: int) -> None: ...

`manage.py duetime work` runs the jobs. Pushes inside `transaction.atomic()` wait for the commit. Around each run,
database connections that are too old or broken are closed, as Django does around requests.
"""

# pyright: basic
# Django has no type hints.

from collections.abc import Callable
from functools import cache
from importlib import import_module
from inspect import iscoroutinefunction
from typing import Any

import django
from django.apps import apps as installed_apps
from django.conf import settings
from django.db import close_old_connections, connections

from duetime.client.checks import check_options
from duetime.worker.after_commit import django as commit_hook
from duetime.worker.app import App
from duetime.worker.current_job import CurrentJob
from duetime.worker.events import TaskEvent
from duetime.worker.task import Task

KNOWN = ("URL", "NAMESPACE", "TOKEN", "QUEUE", "JOURNAL", "AFTER_COMMIT", "CONSOLE")


def read_settings() -> dict[str, Any]:
    """The setting DUETIME. Raises TypeError for a name that does not exist."""
    given: dict[str, Any] = getattr(settings, "DUETIME", {})
    check_options(given, KNOWN)
    return given


class DjangoApp(App):
    """An App that finds tasks in any module of the installed apps, not only in those called `tasks`."""

    def find_task(self, name: str) -> Task[..., Any] | None:
        found = super().find_task(name)
        module = name.rpartition(".")[0]
        if found is not None or installed_apps.get_containing_app_config(name) is None:
            return found
        try:
            import_module(module)  # a task is added where it is defined
        except ImportError:
            return None
        return super().find_task(name)


@cache
def make_app() -> App:
    """The App of the settings, made once."""
    given = read_settings()
    names = ("URL", "NAMESPACE", "TOKEN", "QUEUE", "JOURNAL")
    made = DjangoApp(**{name.lower(): given[name] for name in names if given.get(name)})
    using = given.get("AFTER_COMMIT", True)
    if using:
        made.after_commit(commit_hook(using if isinstance(using, str) else None))
    made.use(_with_fresh_connections)
    made.on("child_starting")(_leave_connections)
    return made


def _with_fresh_connections(job: CurrentJob, call: Callable[[], Any]) -> Any:
    if iscoroutinefunction(call):  # the ORM's async calls have threads of their own
        return call()
    close_old_connections()
    try:
        return call()
    finally:
        close_old_connections()


def _leave_connections(event: TaskEvent) -> None:
    """Connections that were open at a fork belong to the parent process."""
    for connection in connections.all(initialized_only=True):
        connection.connection = None


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if (
        not installed_apps.apps_ready and not installed_apps.loading
    ):  # a program that is not Django's, such as `duetime work`
        django.setup()
    return make_app()
