"""The options of one call of a task: `send.options(queue="urgent", tries=1).delay("ann")`.

They stand above the task's own options and hold for the jobs of that call alone. All are checked when they are given,
not when the job is pushed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

from duetime.client import checks
from duetime.client.job_building import IfExistsWord, PriorityWord
from duetime.model.clock import Duration, delay_ms, duration_ms
from duetime.model.job import IfExists, Priority
from duetime.model.job_checks import check_tries
from duetime.model.names import Queue, check_attributes, check_queue


class CallFields(TypedDict, total=False):
    """docs/tasks.md has the table."""

    queue: str
    priority: Priority | PriorityWord
    ttl: Duration
    id: str
    if_exists: IfExists | IfExistsWord
    tries: int
    delay: Duration
    headers: Mapping[str, str]


@dataclass(frozen=True)
class CallOptions:
    """None leaves it to the task. `headers` become the attributes of the job."""

    queue: Queue | None = None
    priority: Priority = Priority.NORMAL
    ttl_ms: int = 0
    id: str | None = None
    if_exists: IfExists = IfExists.KEEP
    tries: int | None = None
    delay_ms: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


def change(options: CallOptions, namespace: str, given: CallFields) -> CallOptions:
    """The options with those that are given; headers are added to those that are there. Raises TypeError for an
    unknown name, InvalidRequest for a value that does not fit.
    """
    checks.check_options(given, CallFields.__annotations__.keys())
    changed: dict[str, Any] = {}
    for name, value in dict[str, Any](given).items():
        match name:
            case "queue":
                changed[name] = check_queue(namespace, value)
            case "priority":
                changed[name] = checks.priority(value)
            case "ttl":
                changed["ttl_ms"] = duration_ms(value)
            case "id":
                changed[name] = checks.job_id(value)
            case "if_exists":
                changed[name] = checks.if_exists(value)
            case "tries":
                changed[name] = check_tries(value)
            case "delay":
                changed["delay_ms"] = delay_ms(value)
            case _:
                headers = {**options.headers, **checks.attributes(value)}
                check_attributes(headers)
                changed["headers"] = headers
    return replace(options, **changed)
