"""The options of a load, given as options of the data source or as arguments of `schedule`.

`maxJobsPerSecond` and `max_jobs_per_second` are the same option. Read once on the driver, then pickled to executors.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, TypedDict
from urllib.parse import urlsplit

from duetime.client.transport import is_http
from duetime.model.clock import Duration, duration_ms
from duetime.model.errors import InvalidRequest, InvalidSettings
from duetime.model.job import DEFAULT_TRIES, MAX_TRIES, Priority
from duetime.model.masking import MASK, mask
from duetime.model.names import DEFAULT_NAMESPACE, DEFAULT_POOL, check_namespace, check_queue

MARK_LIFE_MS = 7 * 86_400_000


class BadRecords(StrEnum):
    """What a row that cannot be a job does to the load."""

    FAIL = "fail"
    SKIP = "skip"


class LoadFields(TypedDict, total=False):
    """The arguments of `schedule`; docs/pipelines.md has the table."""

    url: str
    token: str | None
    namespace: str
    queue: str
    batch: str
    ttl: Duration
    tries: int
    priority: str | Priority
    spread: Duration
    max_jobs_per_second: float
    bad_records: str
    timeout: Duration
    writers: int
    journal: str | None
    pool: str
    source: str


@dataclass(frozen=True)
class LoadOptions:
    """The options after their check. `journal` is the folder for the accepted rows' entries; `writers` is how many
    tasks push at a time.

    `source` identifies what the rows are from: another source under the same batch name is a conflict.
    """

    url: str
    namespace: str = DEFAULT_NAMESPACE
    token: str | None = None
    queue: str = ""
    batch: str = ""
    ttl_ms: int = 0
    tries: int = DEFAULT_TRIES
    priority: Priority = Priority.NORMAL
    spread_ms: int = 0
    max_jobs_per_second: float = 0.0
    bad_records: BadRecords = BadRecords.FAIL
    timeout_ms: int = 0
    writers: int = 0
    journal: str | None = None
    pool: str = DEFAULT_POOL
    source: str = ""

    def __repr__(self) -> str:
        """Without passwords and the token: Spark's logs and tracebacks show what is pickled to executors."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        values |= {"url": mask(self.url), "token": MASK if self.token else None}
        return f"LoadOptions({', '.join(f'{name}={value!r}' for name, value in values.items())})"

    @property
    def store_url(self) -> str:
        """The URL, with the timeout if it is a kind of URL that takes one."""
        if not self.timeout_ms or not self.url.startswith("redis"):
            return self.url
        return f"{self.url}{'&' if urlsplit(self.url).query else '?'}timeout={self.timeout_ms / 1000}"

    @property
    def is_http(self) -> bool:
        return is_http(self.url)


NAMES = {
    "url": "url",
    "namespace": "namespace",
    "token": "token",
    "queue": "queue",
    "batch": "batch",
    "ttl": "ttl_ms",
    "tries": "tries",
    "priority": "priority",
    "spread": "spread_ms",
    "maxjobspersecond": "max_jobs_per_second",
    "badrecords": "bad_records",
    "timeout": "timeout_ms",
    "writers": "writers",
    "journal": "journal",
    "pool": "pool",
    "source": "source",
}


def read_options(given: Mapping[str, Any]) -> LoadOptions:
    """Raises InvalidSettings for an unknown or missing option, InvalidRequest for a bad value."""
    fields: dict[str, Any] = {}
    for written, value in given.items():
        name = NAMES.get(written.replace("_", "").lower())
        if name is None:
            raise InvalidSettings(f"unknown option {written!r}; there are {', '.join(sorted(NAMES))}")
        if value is not None:
            fields[name] = _read(name, value)
    if not fields.get("url"):
        raise InvalidSettings("the option url is missing: a store (redis://, sqlite:///) or a server (http://)")
    if fields["url"].startswith("memory:"):
        raise InvalidSettings("a memory: store is one process's own; Spark's workers are others")
    options = LoadOptions(**fields)
    check_namespace(options.namespace)
    if options.queue:
        check_queue(options.namespace, options.queue)
    if options.batch:
        check_batch(options.batch)
    return options


def check_batch(name: str) -> str:
    """A batch's name becomes the name of a folder and a part of every mark's name. Raises InvalidRequest."""
    check_namespace(name)
    if name.startswith((".", "_")) or len(name) > 200:
        raise InvalidRequest(f"a batch's name begins with a letter or digit and has at most 200: {name!r}")
    return name


def _read(name: str, value: Any) -> Any:
    match name:
        case "ttl_ms" | "spread_ms" | "timeout_ms":
            return duration_ms(value)
        case "tries" | "writers":
            return _whole(name, value, MAX_TRIES)
        case "priority":
            return read_priority(value)
        case "max_jobs_per_second":
            return _rate(value)
        case "bad_records":
            return _bad_records(value)
        case _:
            return str(value)


def _whole(name: str, value: Any, most: int) -> int:
    text = str(value)
    if not (text.isascii() and text.isdigit()) or int(text) > most:
        raise InvalidRequest(f"{name} is a whole number from 0 to {most}, not {value!r}")
    return int(text)


def _rate(value: Any) -> float:
    try:
        rate = float(value)
    except ValueError:
        rate = -1.0
    if not 0 <= rate < float("inf"):
        raise InvalidRequest(f"maxJobsPerSecond is a number of jobs, 0 for no cap, not {value!r}")
    return rate


def _bad_records(value: Any) -> BadRecords:
    word = str(value).lower()
    try:
        return BadRecords.SKIP if word == "quarantine" else BadRecords(word)
    except ValueError:
        raise InvalidRequest(f"badRecords must be fail or skip, got {value!r}") from None


def read_priority(value: Any) -> Priority:
    """high, normal, low, or 1, 2, 3."""
    text = str(int(value)) if isinstance(value, int) else str(value).strip().upper()
    for priority in Priority:
        if text in (priority.name, str(priority.value)):
            return priority
    raise InvalidRequest(f"a priority is high, normal or low, not {value!r}")
