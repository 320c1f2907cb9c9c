"""What holds around a push holds around the run: the tenant, the language, the trace.

    TENANT: ContextVar[str] = ContextVar("tenant")
    app.use(context(TENANT, trace=True))

The values travel as headers of the job, named as the variables are.
"""

from collections.abc import Callable
from contextvars import ContextVar
from importlib import import_module
from typing import Any

from duetime.model.errors import InvalidSettings
from duetime.worker.current_job import CurrentJob
from duetime.worker.middleware_chain import Middleware, PendingJob


class Context:
    def __init__(self, variables: tuple[ContextVar[str], ...], *, trace: bool) -> None:
        self._variables = variables
        self._propagate: Any = None
        if trace:
            try:
                self._propagate = import_module("opentelemetry.propagate")
                self._attach: Any = import_module("opentelemetry.context").attach
            except ImportError as error:
                raise InvalidSettings("context(trace=True) needs OpenTelemetry: pip install duetime[otel]") from error

    def pushing(self, job: PendingJob) -> None:
        for variable in self._variables:
            value = variable.get(None)
            if value is not None:
                job.headers.setdefault(variable.name, value)
        if self._propagate:
            self._propagate.inject(job.headers)

    def opening(self, job: CurrentJob) -> None:
        """Every run has a context of its own, so nothing needs to be put back."""
        for variable in self._variables:
            if variable.name in job.headers:
                variable.set(job.headers[variable.name])
        if self._propagate:
            self._attach(self._propagate.extract(job.headers))

    def __call__(self, job: CurrentJob, call: Callable[[], Any]) -> Any:
        return call()


def context(*variables: ContextVar[str], trace: bool = False) -> Middleware:
    """Carry these variables from the push to the run. A variable that is not set at the push is left alone; a header of
    the same name that the call gives wins. With `trace`, OpenTelemetry's context is carried as well.
    """
    return Context(variables, trace=trace)
