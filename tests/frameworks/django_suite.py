"""Runs Django's own tests of task backends on Duetime: python django_suite.py FOLDER, where FOLDER is `tests` of
Django's source. A program of its own, because Django has one configuration per process.

The tests name Django's dummy backend, which keeps jobs in a list. Duetime's backend takes its place, with that list.
"""

import sys
import unittest
from importlib import import_module
from typing import Any

import django
from django.conf import settings
from django.test.utils import setup_test_environment

LEFT_OUT = ("test_refresh_result", "test_refresh_result_async")
"""Of the class for the dummy backend: they finish a job by a change of the object in its list."""


def main(folder: str) -> bool:
    sys.path.insert(0, folder)
    settings.configure(
        SECRET_KEY="not a secret",
        USE_TZ=True,
        INSTALLED_APPS=["duetime.frameworks.django", "tasks"],
        DUETIME={"URL": "memory:"},
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    )
    django.setup()
    setup_test_environment()

    from duetime.client.calls import cancel
    from duetime.frameworks.django import make_app
    from duetime.frameworks.django.backend import DuetimeBackend
    from duetime.model.names import Queue

    class ListingBackend(DuetimeBackend):
        """With what the tests ask of the dummy backend: the list, and a way to empty it."""

        def __init__(self, alias: str, params: dict[str, Any]) -> None:
            super().__init__(alias, params)
            self.results: list[Any] = []

        def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
            result = super().enqueue(task, args, kwargs)
            self.results.append(result)
            return result

        def clear(self) -> None:
            for result in self.results:
                make_app().send(cancel(Queue(make_app().namespace, result.task.queue_name), [result.id]))
            self.results.clear()

    # By name: Django 6 and its tests are not there for the type checker.
    vars(import_module("django.tasks.backends.dummy"))["DummyBackend"] = ListingBackend
    test_dummy_backend = import_module("tasks.test_dummy_backend")
    for name in LEFT_OUT:
        delattr(test_dummy_backend.DummyBackendTestCase, name)
    modules = (test_dummy_backend, *map(import_module, ("tasks.test_tasks", "tasks.test_custom_backend")))
    suite = unittest.TestSuite(unittest.defaultTestLoader.loadTestsFromModule(module) for module in modules)
    return unittest.TextTestRunner().run(suite).wasSuccessful()


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1]) else 1)
