"""A model without a table: what the admin lists the queues under."""

# pyright: basic
# Django has no type hints.

from django.db import models


class AdminQueue(models.Model):
    class Meta:
        managed = False
        app_label = "duetime_queues"
        verbose_name = "queue"
        verbose_name_plural = "queues"
        default_permissions = ("view",)
