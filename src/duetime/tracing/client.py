"""Transports that leave spans of what passes through them. Needs the extra [otel].

The spans go to the program's own OpenTelemetry provider. `processing` is for the work that a job is for:

    client = Client(url, tracing=True)
    delivery = client.queue("mail").pop(wait="10s")
    with processing(delivery):
        send(delivery.body)
    client.ack(delivery)
"""

from contextlib import AbstractContextManager
from typing import TypeVar

import msgspec
from opentelemetry.trace import Span

from duetime.client.call import Call, Pushing, Reserving, Settling
from duetime.client.transport import AsyncTransport, SyncTransport
from duetime.model.job import Delivery
from duetime.tracing.spans import Tracing, now_ns, propagator

Answer = TypeVar("Answer")


def processing(delivery: Delivery) -> AbstractContextManager[Span]:
    """A consumer span around the work for a job; it links to the push."""
    return Tracing().processing(delivery)


def trace_headers() -> dict[str, str]:
    """The headers with which a server continues the present trace."""
    carrier: dict[str, str] = {}
    propagator.inject(carrier)
    return carrier


class SyncTraced:
    def __init__(self, inner: SyncTransport) -> None:
        self._inner = inner
        self._tracing = Tracing()

    def send(self, call: Call[Answer]) -> Answer:
        match call.subject:
            case Pushing(queue, jobs, again):
                with self._tracing.pushing(queue, jobs) as carried:
                    return self._inner.send(again(carried))
            case Settling(verb, leased) if leased:
                with self._tracing.settling(verb, leased):
                    # Without `run_blocking`, which may also lease a job: no span would show it.
                    return self._inner.send(msgspec.structs.replace(call, run_blocking=None))
            case Reserving():
                began_ns = now_ns()
                found = self._inner.send(call)
                self._tracing.received(found, began_ns)  # pyright: ignore[reportArgumentType]  # deliveries, as it says
                return found
            case _:
                return self._inner.send(call)

    def close(self) -> None:
        self._inner.close()


class AsyncTraced:
    def __init__(self, inner: AsyncTransport) -> None:
        self._inner = inner
        self._tracing = Tracing()

    async def send(self, call: Call[Answer]) -> Answer:
        match call.subject:
            case Pushing(queue, jobs, again):
                with self._tracing.pushing(queue, jobs) as carried:
                    return await self._inner.send(again(carried))
            case Settling(verb, leased) if leased:
                with self._tracing.settling(verb, leased):
                    return await self._inner.send(call)
            case Reserving():
                began_ns = now_ns()
                found = await self._inner.send(call)
                self._tracing.received(found, began_ns)  # pyright: ignore[reportArgumentType]  # deliveries, as it says
                return found
            case _:
                return await self._inner.send(call)

    async def close(self) -> None:
        await self._inner.close()
