"""`django.tasks` on Duetime: what its reference says of a backend, in a project with a real worker.

Django 6 needs Python 3.12; on 3.11 the backport `django-tasks` is what is tested. The backend imports the first of
the two that is there.
"""

import importlib.util
import json

import pytest

from tests.frameworks.conftest import Program

PACKAGE = "django.tasks" if importlib.util.find_spec("django.tasks") else "django_tasks"

SETTINGS = """
import os
SECRET_KEY = "not a secret"
INSTALLED_APPS = ["shop", "duetime.frameworks.django"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "site.db"}}
USE_TZ = True
DUETIME = {"URL": os.environ["DUETIME_URL"]}
TASKS = {
    "default": {"BACKEND": "duetime.frameworks.django.backend.DuetimeBackend", "QUEUES": ["default", "mail", "rare"]},
    "again": {
        "BACKEND": "duetime.frameworks.django.backend.DuetimeBackend",
        "OPTIONS": {"TRIES": 2, "BACKOFF": "1ms"},
    },
}
"""

TASKS = f"""
from {PACKAGE} import task

@task
def add(left, right=1):
    return left + right

@task(queue_name="mail", priority=10)
async def greet(name):
    return {{"hello": name}}

@task
def fail():
    raise LookupError("no such order")

@task(takes_context=True)
def which(context, word):
    return [context.task_result.id, context.attempt, word]

@task(backend="again", takes_context=True)
def flaky(context):
    if context.attempt == 1:
        raise ConnectionError("busy")
    return context.attempt

@task
def bad():
    return object()
"""

ELSEWHERE = f"""
from {PACKAGE} import task

@task
def hidden(word):
    return word.upper()
"""

MANAGE = """
import sys
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
"""


@pytest.fixture
def project(program: Program) -> Program:
    program.environment["DJANGO_SETTINGS_MODULE"] = "settings"
    program.write("manage.py", MANAGE)
    program.write("settings.py", SETTINGS)
    program.write("shop/__init__.py", "")
    program.write("shop/tasks.py", TASKS)
    program.write("shop/views.py", ELSEWHERE)
    return program


def script(project: Program, text: str) -> str:
    project.write("script.py", "import django\ndjango.setup()\nfrom shop.tasks import *\n" + text)
    return project.run("script.py")


def work(project: Program) -> None:
    project.run("manage.py", "duetime", "work", "--pool", "threads", "--max-jobs", "9")


ENQUEUE = f"""
import asyncio, json
from datetime import timedelta
from django.utils import timezone
from {PACKAGE}.signals import task_enqueued
from shop.views import hidden
told = []
task_enqueued.connect(lambda sender, task_result, **_: told.append(task_result.id), weak=False)
found = {{
    "add": add.enqueue(1, right=2),
    "greet": asyncio.run(greet.aenqueue("ann")),
    "fail": fail.enqueue(),
    "which": which.enqueue("x"),
    "flaky": flaky.enqueue(),
    "bad": bad.enqueue(),
    "rare": add.using(queue_name="rare", priority=-5).enqueue(5),
    "hidden": hidden.enqueue("loud"),
    "tomorrow": add.using(run_after=timezone.now() + timedelta(days=1)).enqueue(1),
}}
for result in found.values():
    assert (result.status, result.is_finished, result.attempts) == ("READY", False, 0)
    assert result.enqueued_at is not None
    result.refresh()
    assert (result.status, result.worker_ids, result.errors) == ("READY", [], [])
assert told == [one.id for one in found.values()]
assert add.get_result(found["add"].id).args == [1]
assert add.get_result(found["add"].id).kwargs == {{"right": 2}}
assert add.get_result(found["tomorrow"].id).task.run_after == found["tomorrow"].task.run_after
assert found["rare"].task.priority == add.get_result(found["rare"].id).task.priority == -5
print(json.dumps({{name: one.id for name, one in found.items()}}))
"""

LOOK = f"""
import asyncio, json
from shop.views import hidden
from {PACKAGE}.exceptions import TaskResultDoesNotExist, TaskResultMismatch
ids = json.loads('''IDS''')
done = add.get_result(ids["add"])
assert (done.status, done.return_value, done.is_finished, done.attempts) == ("SUCCESSFUL", 3, True, 1)
assert done.enqueued_at <= done.started_at <= done.finished_at
assert done.last_attempted_at == done.started_at
assert (done.args, done.kwargs, done.backend, done.task.queue_name) == ([1], {{"right": 2}}, "default", "default")
hello = asyncio.run(greet.aget_result(ids["greet"]))
assert (hello.return_value, hello.task.priority, hello.task.queue_name) == ({{"hello": "ann"}}, 10, "mail")
failed = fail.get_result(ids["fail"])
assert (failed.status, failed.is_finished) == ("FAILED", True), failed
[error] = failed.errors
assert error.exception_class is LookupError
assert "no such order" in error.traceback
try:
    failed.return_value
except ValueError:
    pass
else:
    raise AssertionError("a failed task has no return value")
assert which.get_result(ids["which"]).return_value == [ids["which"], 1, "x"]
assert flaky.get_result(ids["flaky"]).return_value == 2
assert flaky.get_result(ids["flaky"]).attempts == 2
assert bad.get_result(ids["bad"]).status == "FAILED"
assert add.get_result(ids["rare"]).return_value == 6
assert hidden.get_result(ids["hidden"]).return_value == "LOUD"
assert add.get_result(ids["tomorrow"]).status == "READY"
for wrong in ("nothing", "default:nothing", "other:nothing"):
    try:
        add.get_result(wrong)
    except TaskResultDoesNotExist:
        continue
    raise AssertionError(wrong)
try:
    fail.get_result(ids["add"])
except TaskResultMismatch:
    print("all is well")
"""


def test_tasks_run_and_their_results_are_read_in_another_process(project: Program) -> None:
    ids = script(project, ENQUEUE)
    assert len(json.loads(ids)) == 9
    work(project)
    assert script(project, LOOK.replace("IDS", ids.strip())).strip() == "all is well"


REFUSED = f"""
from datetime import datetime
from {PACKAGE} import task
def check(change):
    try:
        change()
    except Exception as error:
        print(type(error).__name__.removesuffix("Error"))
check(lambda: add.using(queue_name="unknown"))
check(lambda: add.using(priority=101))
check(lambda: add.using(run_after=datetime.now()))
check(lambda: task(lambda: None))
check(lambda: add.enqueue(object()))
"""


def test_what_does_not_fit_is_refused_where_it_is_written(project: Program) -> None:
    refused = script(project, REFUSED).split()
    assert refused == ["InvalidTask", "InvalidTask", "InvalidTask", "InvalidTask", "Type"]


def test_an_unknown_option_is_named(project: Program) -> None:
    project.write("settings.py", SETTINGS.replace('"TRIES"', '"TRYS"'))
    with pytest.raises(AssertionError, match="there is no option 'TRYS'; did you mean 'TRIES'"):
        script(project, "flaky.enqueue()")
