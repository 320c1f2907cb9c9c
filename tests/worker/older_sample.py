"""The sample as an older version of the program had it, without the task `work`."""

from tests.worker.sample import app, work

__all__ = ["app"]

del app.tasks[work.name]
