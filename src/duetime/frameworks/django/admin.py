"""Queues in Django's admin: their counts, and the way to the console."""

# pyright: basic
# Django has no type hints.

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from duetime.client.calls import statuses
from duetime.frameworks.django import make_app, read_settings
from duetime.frameworks.django.models import AdminQueue
from duetime.model.errors import DuetimeError


@admin.register(AdminQueue)
class QueueAdmin(admin.ModelAdmin):
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        app = make_app()
        try:
            found, problem = app.send(statuses(app.namespace)), ""
        except DuetimeError as error:
            found, problem = [], error.message
        context = {
            **self.admin_site.each_context(request),
            **(extra_context or {}),
            "title": "Queues",
            "opts": self.opts,
            "queues": found,
            "problem": problem,
            "console": read_settings().get("CONSOLE", ""),
        }
        return TemplateResponse(request, "admin/duetime_queues/queues.html", context)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
