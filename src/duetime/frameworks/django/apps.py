"""The Django application."""

# pyright: basic
# Django has no type hints.

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules


class DuetimeConfig(AppConfig):
    name = "duetime.frameworks.django"
    label = "duetime_queues"
    verbose_name = "Duetime"

    def ready(self) -> None:
        autodiscover_modules("tasks")
