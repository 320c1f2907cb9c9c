"""The options of a load, given as options of the data source or as arguments of `schedule`.

`maxJobsPerSecond` and `max_jobs_per_second` are the same option. Read once on the driver, then pickled to executors.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, TypedDict, TypeVar
from urllib.parse import urlsplit

from duetime.client.transport import check_is_store
from duetime.model.clock import Duration, duration_ms
from duetime.model.errors import InvalidRequest, InvalidSettings
from duetime.model.job import DEFAULT_TRIES, MAX_TRIES, Priority
from duetime.model.masking import MASK, mask
from duetime.model.names import DEFAULT_NAMESPACE, DEFAULT_POOL, check_namespace, check_queue

MARK_LIFE_MS = 7 * 86_400_000

T = TypeVar("T")


class Action(StrEnum):
    """What happens to the job that a row names.

    A row's id may be taken: KEEP leaves that job as it is, REPLACE puts a new job in its place, RESCHEDULE moves it to
    the row's due time if it waits, and replaces it if it does not and the due time is still to come. CANCEL removes the
    job. SAME is a row of a table that has not changed since the last load; nothing is done.
    """

    KEEP = "keep"
    REPLACE = "replace"
    RESCHEDULE = "reschedule"
    CANCEL = "cancel"
    SAME = "same"


IF_EXISTS = (Action.KEEP, Action.REPLACE, Action.RESCHEDULE)
"""The actions that a caller can choose for an id that is taken."""


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
    if_exists: str
    mode: str
    on_change: str | None
    withdraw_missing: bool


@dataclass(frozen=True)
class LoadOptions:
    """The options after their check. `journal` is the folder for the accepted rows' entries; `writers` is how many
    tasks push at a time.

    `source` identifies what the rows are from: another source under the same batch name is a conflict. `if_exists` is
    what happens if an id is taken; `mode` is Action.CANCEL if the rows name jobs to remove. With `on_change` the rows
    are compared with the last load of the same source, and only what has changed is pushed; with `withdraw_missing`
    the jobs of rows that are gone are cancelled.
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
    if_exists: Action = Action.KEEP
    mode: Action | None = None
    on_change: Action | None = None
    withdraw_missing: bool = False

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


NAMES = {one.name.removesuffix("_ms").replace("_", ""): one.name for one in fields(LoadOptions)}
"""The field of each option, by its name without underscores and capitals."""


def read_options(given: Mapping[str, Any]) -> LoadOptions:
    """Raises InvalidSettings for an unknown or missing option, InvalidRequest for a bad value."""
    values: dict[str, Any] = {}
    for written, value in given.items():
        name = NAMES.get(written.replace("_", "").lower())
        if name is None:
            raise InvalidSettings(f"unknown option {written!r}; there are {', '.join(sorted(NAMES))}")
        if value is not None:
            values[name] = READERS.get(name, str)(value)
    if not values.get("url"):
        raise InvalidSettings("the option url is missing: a store (redis://, sqlite:///) or a server (http://)")
    if values["url"].startswith("memory:"):
        raise InvalidSettings("url must not be a memory: store, which Spark's worker processes cannot share")
    options = LoadOptions(**values)
    if options.journal:
        check_is_store(options.url, "a server writes the journal itself: leave journal out, or name the store")
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
        raise InvalidRequest(f"batch must begin with a letter or digit and have at most 200 characters, got {name!r}")
    return name


def _whole(name: str) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        text = str(value)
        if not (text.isascii() and text.isdigit()) or int(text) > MAX_TRIES:
            raise InvalidRequest(f"{name} must be a whole number from 0 to {MAX_TRIES}, got {value!r}")
        return int(text)

    return read


def _rate(value: Any) -> float:
    try:
        rate = float(value)
    except ValueError:
        rate = -1.0
    if not 0 <= rate < float("inf"):
        raise InvalidRequest(f"maxJobsPerSecond must be a number of jobs (0: no limit), got {value!r}")
    return rate


def _one_of(name: str, words: Mapping[str, T]) -> Callable[[Any], T]:
    def read(value: Any) -> T:
        word = str(value).lower()
        if word not in words:
            raise InvalidRequest(f"{name} must be one of {', '.join(words)}, got {value!r}")
        return words[word]

    return read


def read_priority(value: Any) -> Priority:
    """high, normal, low, or 1, 2, 3."""
    text = str(int(value)) if isinstance(value, int) else str(value).strip().upper()
    for priority in Priority:
        if text in (priority.name, str(priority.value)):
            return priority
    raise InvalidRequest(f"priority must be high, normal or low, got {value!r}")


READERS: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("ttl_ms", "spread_ms", "timeout_ms"), duration_ms),
    **{name: _whole(name) for name in ("tries", "writers")},
    "priority": read_priority,
    "max_jobs_per_second": _rate,
    "bad_records": _one_of("badRecords", {**{one.value: one for one in BadRecords}, "quarantine": BadRecords.SKIP}),
    "if_exists": _one_of("ifExists", {action.value: action for action in IF_EXISTS}),
    "on_change": _one_of("onChange", {action.value: action for action in IF_EXISTS}),
    "mode": _one_of("mode", {"push": None, "cancel": Action.CANCEL}),
    "withdraw_missing": _one_of("withdrawMissing", {"true": True, "false": False}),
}
"""How the value of a field is read; all others are text."""
