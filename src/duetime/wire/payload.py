"""The body of a job that runs a task: Laravel's payload, as JSON.

Read here by everything that shows or runs such a job. A body is never written again after the push, so fields that we
do not know stay as they are. `data` is an object with one entry per argument of the task; that is what makes a job
portable: any language can write one.
"""

import re
from typing import Any, cast

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

PREVIEW = 80
TICKS = "duetime.recurring"
"""The queue of the recurring tasks of a namespace: one job per schedule, due at its next run."""
RESTARTS = "restarts"
"""When this counter changes, every worker of the namespace exits."""
PAUSED_TASKS = "paused-tasks"
"""The counter of the tasks whose jobs no worker of a namespace begins; each has a counter of its own as well."""
UNKNOWN_TASKS = "unknown-tasks"
"""The counter of deliveries to workers that do not know the task; next to it is a counter for each queue and task."""
UNKNOWN_LIFE_MS = 600_000
"""The life of these counters from the first delivery."""
PAUSES = "pauses"
"""The counter that is above 0 while the workers of a namespace take no new jobs."""


class Payload(Struct, rename={"name": "job"}, omit_defaults=False):
    """Times are Laravel's: `timeout` in seconds, `retryUntil` and `createdAt` in unix seconds, `backoff` as seconds
    joined by commas (or one of our own policies, such as exponential:1s). None leaves it to the worker. `chained` and
    `joining` are what follows from the job, as `worker/chains.py` and `worker/groups.py` write it.
    """

    displayName: str | None
    name: str
    data: Raw
    uuid: str
    maxTries: int | None = None
    maxExceptions: int | None = None
    failOnTimeout: bool = False
    backoff: str | None = None
    timeout: float | None = None
    retryUntil: float | None = None
    createdAt: int | None = None
    delay: float | None = None
    chained: Raw | UnsetType = UNSET
    joining: Raw | UnsetType = UNSET


class ForeignPayload(Struct, rename={"name": "job"}):
    """A payload as others may write it: nothing but the name of the task is needed, and old spellings are read."""

    name: str
    data: Raw = Raw(b"{}")
    displayName: str | None = None
    uuid: str | None = None
    maxTries: int | None = None
    maxExceptions: int | None = None
    failOnTimeout: bool | None = None
    backoff: str | int | float | None = None
    timeout: float | None = None
    retryUntil: float | None = None
    timeoutAt: float | None = None
    createdAt: int | None = None
    delay: float | UnsetType | None = UNSET
    chained: Raw | UnsetType = UNSET
    joining: Raw | UnsetType = UNSET

    def known(self) -> Payload:
        backoff = self.backoff
        return Payload(
            displayName=self.displayName or self.name.partition("@")[0],
            name=self.name,
            data=self.data,
            uuid=self.uuid or "",
            maxTries=self.maxTries,
            maxExceptions=self.maxExceptions,
            failOnTimeout=bool(self.failOnTimeout),
            backoff=None if backoff is None else str(backoff),
            timeout=self.timeout,
            retryUntil=self.retryUntil if self.retryUntil is not None else self.timeoutAt,
            createdAt=self.createdAt,
            delay=None if self.delay is UNSET else self.delay,
            chained=self.chained,
            joining=self.joining,
        )


NAME = re.compile(rb'\{(?:"displayName": ?(?:null|"(?:[^"\\]|\\.){0,200}"), ?)?"job": ?"([^"\\\x00-\x1f]{1,200})"')
"""The beginning of a payload: the name of the task comes first, or second after the name that people see. Bounded,
because it is read at every delivery.
"""


def task_of(body: bytes) -> str:
    """The task that a payload names, empty if it names none at its beginning; reads no more of it than that."""
    found = NAME.match(body)
    return found[1].decode(errors="replace") if found else ""


_exact = msgspec.json.Decoder(Payload)
_foreign = msgspec.json.Decoder(ForeignPayload)


def read(body: bytes) -> Payload:
    """Raises one of `NOT_JSON` if the body is not a payload."""
    try:
        return _exact.decode(body)
    except msgspec.ValidationError:
        return _foreign.decode(body).known()


def write(payload: Payload, extra: dict[str, Any] | None = None) -> bytes:
    """Write the name and the arguments first, so that a preview of the body shows them."""
    text = msgspec.json.encode(payload)
    if not extra:
        return text
    fields: dict[str, Any] = {**msgspec.json.decode(text, type=dict[str, Raw]), **extra}
    return msgspec.json.encode(fields)


def describe(body: bytes) -> str | None:
    """`shop.send(to="ann", n=3)`, cut at 80 characters; None if this is no payload."""
    try:
        payload = read(body)
        arguments: Any = msgspec.json.decode(payload.data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if isinstance(arguments, dict):
        named = cast(dict[str, Any], arguments)
        shown = ", ".join(f"{name}={_short(value)}" for name, value in named.items())
    else:
        shown = _short(arguments)
    text = f"{payload.displayName or payload.name}({shown})"
    return text if len(text) <= PREVIEW else text[: PREVIEW - 1] + "…"


def paused_task(name: str) -> str:
    """The counter that is above 0 while a task is paused."""
    return f"{PAUSED_TASKS}/{name[-200:]}"


def unknown_task(queue: str, name: str) -> str:
    """The counter of deliveries of one task; long names are cut."""
    return f"{UNKNOWN_TASKS}/{queue[:100]}/{name[-180:]}"


def counter_name(namespace: str, name: str) -> str:
    """The counter's key in the registry, which holds other counters as well."""
    return f"tasks/{namespace}/{name}"


def _short(value: object) -> str:
    return msgspec.json.encode(value).decode()
