"""`manage.py duetime work`, and every other command of `duetime`, on the store of the settings."""

# pyright: basic
# Django has no type hints.

from typing import Any

from django.core.management.base import BaseCommand

from duetime.frameworks import run_command
from duetime.frameworks.django import make_app


class Command(BaseCommand):
    help = "Commands of Duetime; `work` runs the jobs of this project."

    def run_from_argv(self, argv: list[str]) -> None:
        """Everything that follows is Duetime's to read, options included."""
        run_command(make_app(), argv[2:])

    def handle(self, *args: Any, **options: Any) -> None:
        """For `call_command("duetime", "queue", "list")`."""
        run_command(make_app(), args)
