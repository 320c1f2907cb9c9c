"""A Django project: settings, tasks of its apps, the commit, `manage.py duetime`, the admin."""

import json

import pytest

from tests.frameworks.conftest import Program

MANAGE = """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
"""

SETTINGS = """
import os
SECRET_KEY = "not a secret"
DEBUG = True
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "urls"
INSTALLED_APPS = [
    "django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions",
    "django.contrib.messages", "shop", "duetime.frameworks.django",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware", "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [{
    "BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True,
    "OPTIONS": {"context_processors": [
        "django.template.context_processors.request", "django.contrib.auth.context_processors.auth",
        "django.contrib.messages.context_processors.messages",
    ]},
}]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "site.db", "CONN_MAX_AGE": 60}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
DUETIME = {"URL": os.environ["DUETIME_URL"], "QUEUE": "shop", "CONSOLE": "https://jobs.example.com/console"}
"""

FILES = {
    "manage.py": MANAGE,
    "settings.py": SETTINGS,
    "urls.py": """
        from django.contrib import admin
        from django.urls import path
        urlpatterns = [path("admin/", admin.site.urls)]
    """,
    "shop/__init__.py": "",
    "shop/models.py": """
        from django.db import models
        class Order(models.Model):
            state = models.CharField(max_length=20, default="new")
    """,
    "shop/tasks.py": """
        import asyncio
        from duetime.frameworks.django import app
        from shop.models import Order

        @app.task
        def ship(order: int) -> None:
            Order.objects.filter(id=order).update(state="shipped")

        @app.task
        async def bill(order: int) -> None:
            found = await Order.objects.aget(id=order)
            found.state += " and billed"
            await found.asave()
    """,
    "orders.py": """
        import django
        django.setup()
        from django.db import transaction
        from shop.models import Order
        from shop.tasks import bill, ship

        with transaction.atomic():
            order = Order.objects.create()
            assert ship.delay(order.id).born == 0  # held back
        try:
            with transaction.atomic():
                ship.delay(Order.objects.create().id)
                raise LookupError
        except LookupError:
            pass
        with transaction.atomic():
            assert bill.later("1s", order.id).born == 0
    """,
    "look.py": """
        import django
        django.setup()
        from django.contrib.auth.models import User
        from django.test import Client
        User.objects.create_superuser("ann", password="secret")
        client = Client()
        assert client.login(username="ann", password="secret")
        index = client.get("/admin/")
        assert b"/admin/duetime_queues/adminqueue/" in index.content, index.content
        page = client.get("/admin/duetime_queues/adminqueue/")
        assert page.status_code == 200
        print(page.content.decode())
        client.logout()
        assert client.get("/admin/duetime_queues/adminqueue/").status_code == 302
    """,
}


@pytest.fixture
def project(program: Program) -> Program:
    for name, text in FILES.items():
        program.write(name, text)
    program.environment["DJANGO_SETTINGS_MODULE"] = "settings"
    program.run("manage.py", "migrate", "--run-syncdb", "-v", "0")
    return program


@pytest.mark.parametrize("pool", ["processes", "threads"])
def test_a_project_pushes_after_the_commit_and_works(project: Program, pool: str) -> None:
    project.run("orders.py")
    queue = json.loads(project.run("manage.py", "duetime", "queue", "list", "--json"))
    assert (queue["queue"], queue["counts"]["ready"] + queue["counts"]["delayed"]) == ("shop", 2)

    project.run("manage.py", "duetime", "work", "--pool", pool, "-c", "1", "--stop-when-empty-for", "3s")

    state = project.run("manage.py", "shell", "-c", "from shop.models import Order; print(Order.objects.get().state)")
    assert state.strip().endswith("shipped and billed")


def test_the_admin_shows_queues_and_the_way_to_the_console(project: Program) -> None:
    project.run("orders.py")
    page = project.run("look.py")
    assert "https://jobs.example.com/console" in page
    assert "<th>shop</th>" in page.replace("\n", "")


def test_the_plain_command_finds_the_app_as_well(project: Program) -> None:
    project.run("orders.py")
    main = "from duetime.cli.main import main; main()"
    project.run("-c", main, "work", "duetime.frameworks.django:app", "--max-jobs", "2")


def test_a_setting_that_does_not_exist_is_named(project: Program) -> None:
    project.write("settings.py", SETTINGS.replace('"QUEUE"', '"QEUE"'))
    with pytest.raises(AssertionError, match="there is no option 'QEUE'; did you mean 'QUEUE'"):
        project.run("orders.py")
