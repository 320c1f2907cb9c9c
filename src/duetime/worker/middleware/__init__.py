"""Middleware that comes with Duetime: each is made by a function here and given to a task or an App.

    @app.task(middleware=[rate_limit(50, per="1s"), without_overlapping(key=lambda job: job.arguments["account"])])
    def charge(account: int) -> None: ...

What they share between processes is in the store (counters, and the queue `duetime.locks`), so they hold for all
workers of a namespace, on every store and over HTTP. A job that has to wait is postponed, which uses no try.
"""

from duetime.worker.middleware.context import context
from duetime.worker.middleware.debounce import debounce
from duetime.worker.middleware.encrypted import encrypted
from duetime.worker.middleware.rate_limit import rate_limit
from duetime.worker.middleware.skip_if import skip_if
from duetime.worker.middleware.throttle_exceptions import throttle_exceptions
from duetime.worker.middleware.unique_until_start import unique_until_start
from duetime.worker.middleware.without_overlapping import without_overlapping

__all__ = [
    "context",
    "debounce",
    "encrypted",
    "rate_limit",
    "skip_if",
    "throttle_exceptions",
    "unique_until_start",
    "without_overlapping",
]
