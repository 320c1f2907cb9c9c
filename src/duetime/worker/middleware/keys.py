"""What a middleware keeps its state by, and how it asks the store."""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from duetime.client.call import Call
from duetime.client.calls import get
from duetime.model.errors import StoreUnavailable
from duetime.model.job import State
from duetime.model.names import Queue
from duetime.worker.current_job import CurrentJob
from duetime.worker.task_exceptions import Postpone

Answer = TypeVar("Answer")

OUTAGE_PAUSE_S = 1


class KeyedJob(Protocol):
    """What a key can be made of: a job that is being pushed (PendingJob), or one that runs (CurrentJob)."""

    @property
    def name(self) -> str: ...

    @property
    def arguments(self) -> Mapping[str, Any]: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def hash_key(self) -> bytes: ...


JobKey = Callable[[KeyedJob], object]


def by_task(job: KeyedJob) -> object:
    """One key for all jobs of a task."""
    return ""


def key_text(kind: str, job: KeyedJob, key: JobKey) -> str:
    """A name of bounded length: equal for equal kinds, tasks and keys in every process. A key that is a text is shared
    by no other task, whatever that text is. The hash is keyed if the arguments are encrypted.
    """
    text = repr(key(job)).encode(errors="backslashreplace")
    digest = hashlib.blake2b(text, key=job.hash_key, digest_size=16, person=b"middleware").hexdigest()
    return f"{kind}/{job.name[-64:]}/{digest}"


async def is_leased(job: CurrentJob, queue: Queue, job_id: str, born: int, attempt: int) -> bool:
    """Returns whether this delivery of a job still holds its lease."""
    [found] = await ask(job, get(queue, [job_id]))
    return found is not None and found.state is State.LEASED and (found.born, found.attempt) == (born, attempt)


async def ask(job: CurrentJob, call: Call[Answer]) -> Answer:
    """Send a call to the store. While the store is away, the job is postponed: whether it may run is not known."""
    try:
        return await job.app.send_async(call)
    except StoreUnavailable as error:
        raise Postpone(f"the store is away: {error.message}", after=OUTAGE_PAUSE_S) from error
