"""Spans of what happens to jobs, after OpenTelemetry's conventions for messaging. Needs the extra [otel].

A push is a producer span, whose context travels with each job as the attributes `traceparent` and `tracestate`. A
delivery may come hours later, when that trace is long over: spans of consumers begin a trace of their own, or go on
with their caller's, and *link* to the push. Nothing here is imported unless tracing is switched on.
"""

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

from msgspec.structs import replace
from opentelemetry import trace
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from duetime.model.errors import DuetimeError
from duetime.model.job import Delivery, Lease, NewJob
from duetime.model.names import MAX_ATTRIBUTE_VALUE, MAX_ATTRIBUTES, Queue

SYSTEM = "duetime"
TRACEPARENT = "traceparent"

now_ns = time.time_ns
propagator = TraceContextTextMapPropagator()

Attributes = dict[str, str | int]


class Tracing:
    """Makes spans with one tracer: that of the program's own provider if none is given."""

    def __init__(self, tracer: Tracer | None = None) -> None:
        self._tracer = tracer or trace.get_tracer(SYSTEM)

    @contextmanager
    def pushing(self, queue: Queue, jobs: Sequence[NewJob]) -> Generator[Sequence[NewJob], None, None]:
        """A span around a push; gives the jobs to push. Jobs that carry a context already keep it."""
        about = _about("push", "send", queue, [job.id for job in jobs])
        if len(jobs) == 1:
            about["messaging.message.body.size"] = len(jobs[0].body)
        with self._span(about, SpanKind.PRODUCER):
            yield carry(jobs)

    def received(self, deliveries: Sequence[Delivery], began_ns: int) -> None:
        """Record a reserve that began at that time and answered these jobs; an empty answer leaves no span."""
        by_queue: dict[Queue, list[Delivery]] = {}
        for delivery in deliveries:
            by_queue.setdefault(delivery.lease.queue, []).append(delivery)
        for queue, found in by_queue.items():
            about = _about("reserve", "receive", queue, [one.lease.id for one in found])
            span = self._tracer.start_span(
                _name(about),
                kind=_kind(SpanKind.CLIENT),
                attributes=about,
                links=links(found),
                start_time=began_ns,
            )
            span.end()

    @contextmanager
    def settling(self, verb: str, leased: Sequence[Lease | Delivery]) -> Generator[None, None, None]:
        """A span around an ack, a release or a kill."""
        leases = [one.lease if isinstance(one, Delivery) else one for one in leased]
        about = _about(verb, "settle", leases[0].queue, [lease.id for lease in leases])
        with self._span(about, SpanKind.CLIENT, links([one for one in leased if isinstance(one, Delivery)])):
            yield

    @contextmanager
    def processing(self, delivery: Delivery) -> Generator[Span, None, None]:
        """A span around the work that a job is for: a trace of its own that links to the push."""
        about = _about("process", "process", delivery.lease.queue, [delivery.lease.id])
        about["messaging.duetime.attempt"] = delivery.lease.attempt
        with self._span(about, SpanKind.CONSUMER, links([delivery])) as span:
            yield span

    @contextmanager
    def _span(self, about: Attributes, kind: SpanKind, linked: Sequence[Link] = ()) -> Generator[Span, None, None]:
        with self._tracer.start_as_current_span(
            _name(about), kind=_kind(kind), attributes=about, links=linked, record_exception=False
        ) as span:
            try:
                yield span
            except BaseException as error:
                code = error.code if isinstance(error, DuetimeError) else type(error).__name__
                span.set_attribute("error.type", code)
                span.set_status(Status(StatusCode.ERROR, code))
                raise


def carry(jobs: Sequence[NewJob]) -> Sequence[NewJob]:
    """The jobs with the present context among their attributes, where there is room for it."""
    carrier: dict[str, str] = {}
    propagator.inject(carrier)
    carrier = {name: value for name, value in carrier.items() if len(value) <= MAX_ATTRIBUTE_VALUE}
    if TRACEPARENT not in carrier:
        return jobs
    return [_with(job, carrier) for job in jobs]


def _with(job: NewJob, carrier: Mapping[str, str]) -> NewJob:
    if TRACEPARENT in job.attributes or len(job.attributes) + len(carrier) > MAX_ATTRIBUTES:
        return job
    return replace(job, attributes={**job.attributes, **carrier})


def links(deliveries: Sequence[Delivery]) -> list[Link]:
    """Links to the pushes of these jobs, as far as those were traced."""
    found: list[Link] = []
    for delivery in deliveries:
        if TRACEPARENT in delivery.attributes:
            pushed = trace.get_current_span(propagator.extract(delivery.attributes, context=_NOWHERE))
            if pushed.get_span_context().is_valid:
                found.append(Link(pushed.get_span_context(), {"messaging.message.id": delivery.lease.id}))
    return found


_NOWHERE = trace.set_span_in_context(trace.INVALID_SPAN)


def _about(operation: str, kind: str, queue: Queue, ids: Sequence[str]) -> Attributes:
    about: Attributes = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": str(queue),
    }
    if len(ids) == 1:
        about["messaging.message.id"] = ids[0]
    else:
        about["messaging.batch.message_count"] = len(ids)
    return about


def _name(about: Attributes) -> str:
    return f"{about['messaging.operation.name']} {about['messaging.destination.name']}"


def _kind(kind: SpanKind) -> SpanKind:
    """A span below one of another process is the server's side of that call."""
    return SpanKind.SERVER if trace.get_current_span().get_span_context().is_remote else kind
