"""Every error that Duetime raises, on both sides of every wire; docs/errors.md has them as a tree.

`code` is the stable name on the wire; `fields` hold values for programs. A store returns these errors as values in
calls with several requests, and raises them in calls with one. `of` makes an error whose text is used in several
stores or protocols.
"""

import sys
from collections.abc import Iterator
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar, Self

import msgspec

if TYPE_CHECKING:
    from duetime.model.job import Lease


class DuetimeError(Exception):
    """Something Duetime refused or could not do."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500

    def __init__(self, message: str = "", **fields: Any) -> None:
        self.message = message or (type(self).__doc__ or "").split("\n", 1)[0].rstrip(".")
        self.fields = fields
        super().__init__(self.message)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, DuetimeError) and self.message == other.message

    def __hash__(self) -> int:
        return hash((type(self), self.message))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.fields)


def _rebuild(kind: type[DuetimeError], message: str, fields: dict[str, Any]) -> DuetimeError:
    return kind(message, **fields)


class InvalidRequest(DuetimeError):
    """The request is not valid."""

    code = "invalid_request"
    status = 400

    @classmethod
    def not_both(cls, one: str, other: str) -> Self:
        """The caller gave two fields that exclude each other."""
        return cls(f"give {one} or {other}, not both")


class InvalidName(InvalidRequest):
    """The name must have 1 to 255 ASCII letters, digits, '-', '_' and '.'."""

    code = "invalid_name"


class InvalidId(InvalidRequest):
    """The job id must have 1 to 128 printable characters."""

    code = "invalid_id"


class InvalidTime(InvalidRequest):
    """The duration or instant is not valid."""

    code = "invalid_time"


class ExpiresBeforeDue(InvalidRequest):
    """The job would expire before it is due."""

    code = "expires_before_due"

    @classmethod
    def of(cls, job_id: str) -> Self:
        return cls(f"the job {job_id!r} would expire before it is due", id=job_id)


class InvalidCondition(InvalidRequest):
    """The retry condition cannot be read."""

    code = "invalid_condition"


class BodyTooLarge(InvalidRequest):
    """The body is larger than allowed."""

    code = "body_too_large"
    status = 413

    @classmethod
    def of(cls, job_id: str, size: int, limit: object) -> Self:
        return cls(f"body must have at most {limit} bytes in this queue, got {size}", id=job_id)


class Unauthorized(DuetimeError):
    """No valid token was given."""

    code = "unauthorized"
    status = 401


class Forbidden(DuetimeError):
    """The token does not allow this."""

    code = "forbidden"
    status = 403


class NotFound(DuetimeError):
    """There is no such thing."""

    code = "not_found"
    status = 404


class JobNotFound(NotFound):
    """There is no such job."""

    code = "job_not_found"

    @classmethod
    def of(cls, job_id: str, queue: object) -> Self:
        return cls(f"there is no job {job_id!r} in {queue}", id=job_id)


class PoolNotFound(NotFound):
    """There is no such pool."""

    code = "pool_not_found"

    @classmethod
    def of(cls, name: str) -> Self:
        return cls(f"there is no pool {name!r}")


class TopicNotFound(NotFound):
    """There is no such topic."""

    code = "topic_not_found"


class ScheduleNotFound(NotFound):
    """There is no such schedule."""

    code = "schedule_not_found"


class MethodNotAllowed(DuetimeError):
    """This address does not support this method."""

    code = "method_not_allowed"
    status = 405


class Conflict(DuetimeError):
    """The request does not fit the present state."""

    code = "conflict"
    status = 409


class JobExists(Conflict):
    """A job with this id exists."""

    code = "job_exists"

    @classmethod
    def of(cls, job_id: str) -> Self:
        return cls(f"a job with the id {job_id!r} exists", id=job_id)


class LeaseLost(Conflict):
    """The lease is no longer held: it expired, or the job was finished or replaced."""

    code = "lease_lost"

    @classmethod
    def of(cls, lease: "Lease") -> Self:
        return cls(f"the lease on {lease.id!r} (attempt {lease.attempt}) is no longer held", id=lease.id)


class JobRunning(Conflict):
    """The job is leased by a consumer."""

    code = "job_running"

    @classmethod
    def of(cls, job_id: str) -> Self:
        return cls(f"the job {job_id!r} is leased", id=job_id)


class JobDead(Conflict):
    """The job is among the dead letters; respawn it first."""

    code = "job_dead"

    @classmethod
    def of(cls, job_id: str) -> Self:
        return cls(f"the job {job_id!r} is dead; respawn it first", id=job_id)


class VersionConflict(Conflict):
    """The record was changed in the meantime."""

    code = "version_conflict"

    @classmethod
    def of(cls, kind: str, key: str, present: int, expected: int | None) -> Self:
        return cls(f"{kind} {key!r} is at version {present}, not {expected}", version=present)


class TopicExists(Conflict):
    """A topic with this name exists."""

    code = "topic_exists"


class ScheduleDeclared(Conflict):
    """A program with tasks declares a schedule of this name."""

    code = "schedule_declared"


class TopicOffline(Conflict):
    """The topic, or a queue with the rule `offline`, accepts no new jobs."""

    code = "topic_offline"

    @classmethod
    def of_queue(cls) -> Self:
        return cls("topic of this queue is offline and accepts no new jobs")


class MarkMismatch(Conflict):
    """The same mark was used for another request."""

    code = "mark_mismatch"
    status = 422

    @classmethod
    def of(cls, name: str) -> Self:
        return cls(f"mark {name!r} was already used for another request", mark=name)


class QueueFull(DuetimeError):
    """The queue is full."""

    code = "queue_full"
    status = 429

    @classmethod
    def of(cls, max_jobs: int) -> Self:
        return cls(f"queue is full: it holds its maximum of {max_jobs} jobs", max_jobs=max_jobs)


class TooManyRequests(DuetimeError):
    """The limit of this token is reached."""

    code = "too_many_requests"
    status = 429


class StoreUnavailable(DuetimeError):
    """The store cannot be reached.

    Field `unknown=True`: the call may have taken effect. Field `locked=True`: the store works, but a row that the call
    needs was locked for too long.
    """

    code = "store_unavailable"
    status = 503

    @classmethod
    def stopping(cls) -> Self:
        return cls("the engine is stopping")

    @property
    def outcome_unknown(self) -> bool:
        return bool(self.fields.get("unknown"))

    def after_a_loss(self) -> "StoreUnavailable":
        """The same error for a repeated call: the first call, whose answer was lost, may have taken effect."""
        return StoreUnavailable(self.message, **{**self.fields, "unknown": True})


def done_in_part(problem: StoreUnavailable, done: int, what: str) -> StoreUnavailable:
    """The error of a call with several steps or stores, of which some succeeded."""
    if not done:
        return problem
    return StoreUnavailable(f"{done} jobs were {what}; {problem.message}", unknown=True, done=done)


def own_copy(error: Exception) -> Exception:
    """A copy for one caller to raise: a shared error would gather the tracebacks of all callers."""
    if not isinstance(error, DuetimeError):
        return error
    own = copy(error)
    own.__cause__ = error
    return own


class Overloaded(DuetimeError):
    """The server is overloaded; try again in a moment."""

    code = "overloaded"
    status = 503


class NoAnswer(DuetimeError):
    """Nobody answered the call in time; the job stays."""

    code = "no_answer"
    status = 504


class StoreFull(DuetimeError):
    """The store is full and accepts no pushes; deliveries and acks continue."""

    code = "store_full"
    status = 507


class JournalFull(StoreFull):
    """The disk of the journal is full, so pushes are refused; deliveries and acks continue."""

    code = "journal_full"


class StoreDamaged(DuetimeError):
    """The store holds something that Duetime did not write."""

    code = "store_damaged"


class InvalidSettings(DuetimeError):
    """The settings are not valid."""

    code = "invalid_settings"

    @classmethod
    def lacks(cls, what: str, extra: str, missing: ModuleNotFoundError) -> Self:
        """An optional package is not installed, or the system (Windows) lacks a module of the standard library."""
        if missing.name in sys.stdlib_module_names:
            return cls(f"{what} needs a POSIX system: use Linux, macOS, WSL or a container, or connect to a server")
        return cls(f"{what} needs the package {missing.name}: pip install 'duetime[{extra}]'")


class ClientClosed(DuetimeError):
    """The client is closed."""

    code = "client_closed"


def _tree(root: type[DuetimeError]) -> Iterator[type[DuetimeError]]:
    yield root
    for child in root.__subclasses__():
        yield from _tree(child)


BY_CODE: dict[str, type[DuetimeError]] = {kind.code: kind for kind in _tree(DuetimeError)}
"""Classes by code: a client raises the same class as the engine."""


NOT_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are not JSON of the expected type: text that is not UTF-8 and deep nesting have
errors of their own.
"""
