"""The metrics of a process's HTTP listeners: answers by status, connections, memory."""

from collections.abc import Collection, Mapping
from typing import Protocol

from duetime.http.memory_budget import Budget
from duetime.metrics.meters import Meters

PER_LISTENER = ("listener",)


class Counted(Protocol):
    """A listener as its metrics need it. `answers` counts its answers by status."""

    @property
    def answers(self) -> Mapping[int, int]: ...

    @property
    def connections(self) -> Collection[object]: ...


def watch_listener(meters: Meters, name: str, listener: Counted) -> None:
    """From now on every snapshot has this listener's numbers."""
    answers = meters.counter(
        "duetime_http_responses_total", "Answers to HTTP requests by status.", (*PER_LISTENER, "code")
    )
    connections = meters.level("duetime_http_connections", "Open HTTP connections.", PER_LISTENER)

    def look() -> None:
        for status, count in listener.answers.items():
            answers.of(name, str(status)).value = count
        connections.of(name).value = len(listener.connections)

    meters.before_snapshot(look)


def watch_budget(meters: Meters, budget: Budget) -> None:
    held = meters.level("duetime_http_buffered_bytes", "Bytes of requests and unread answers that are held.")
    refused = meters.counter("duetime_http_overload_refusals_total", "Requests refused because too much was held.")

    def look() -> None:
        held.of().value = budget.held
        refused.of().value = budget.refused

    meters.before_snapshot(look)
