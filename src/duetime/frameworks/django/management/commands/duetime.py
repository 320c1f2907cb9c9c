"""`manage.py duetime work`, and every other command of `duetime`, on the store of the settings."""

# pyright: basic
# Django has no type hints.

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from duetime.frameworks import run_command
from duetime.frameworks.django import make_app
from duetime.worker.options import queues_of


class Command(BaseCommand):
    help = "Commands of Duetime; `work` runs the jobs of this project."

    def run_from_argv(self, argv: list[str]) -> None:
        """Everything that follows is Duetime's to read, options included."""
        run_command(make_app(), _with_queues(argv[2:]))

    def handle(self, *args: Any, **options: Any) -> None:
        """For `call_command("duetime", "queue", "list")`."""
        run_command(make_app(), _with_queues(args))


def _with_queues(arguments: Sequence[str]) -> list[str]:
    """A worker that names no queues also serves those that Django's setting TASKS names for Duetime."""
    given = list(arguments)
    backends: dict[str, Any] = getattr(settings, "TASKS", {})
    if given[:1] != ["work"] or any(one.startswith("--queue") for one in given):
        return given
    if not any(one.get("BACKEND", "").startswith("duetime.") for one in backends.values()):
        return given
    from duetime.frameworks.django.backend import served_queues  # noqa: PLC0415 (Django 6, or its backport)

    app = make_app()
    queues = dict.fromkeys([*queues_of(app.tasks.values(), app.default_queue), *served_queues()])
    return [*given, "--queue", ",".join(queues)]
