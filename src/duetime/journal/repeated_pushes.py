"""The journal's entries for pushes that changed nothing and are answered as accepted: kept jobs and repeated marks.

Another process may have stored such a job and died before it wrote to the journal; then the answer would promise a job
that is in no journal. So when this process first gives such an answer about a job, it reads the job from the store and
writes it down as "repeated". Readers count any number of these entries as one, with or without the original entry.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from duetime.journal.events import REPEATED, Draft, body_fields
from duetime.journal.journal import Journal
from duetime.model.errors import DuetimeError, StoreUnavailable
from duetime.model.job import Event, Job, Moved, NewJob
from duetime.model.names import Queue
from duetime.stores.base import Push, Pushed, Store

MAX_KNOWN = 20_000
READ_AT_ONCE = 50

Answers = Sequence[Pushed | DuetimeError]


class Doubtful(NamedTuple):
    """A job that is answered as accepted and may be missing from the journal. `job` is the job in the request, None if
    the stored one may differ from it; `ts` is the store's time of the answer.
    """

    job: NewJob | None
    moved: Moved
    batch: str
    ts: int


class RepeatedPushes:
    """Writes such entries for one pool. Remembers the last MAX_KNOWN jobs that it has written down."""

    def __init__(self, store: Store, journal: Journal, pool: str) -> None:
        self._store, self._journal, self._pool = store, journal, pool
        self._known: dict[tuple[Queue, str, int], None] = {}

    async def record(self, queue: Queue, requests: Sequence[Push], answers: Answers) -> Answers:
        """Write the doubtful jobs down, with a promise. If the store cannot be asked about them, requests with such
        jobs get an error with an unknown outcome instead of their answer.
        """
        doubtful = {(one.moved.id, one.moved.born): one for one in self._doubtful(queue, requests, answers)}
        while doubtful:
            keys = list(doubtful)[:READ_AT_ONCE]
            try:
                found = await self._store.get(queue, [job_id for job_id, _ in keys])
            except DuetimeError as error:
                return _unsure(answers, error)
            # The store may answer only the first of them, up to its bound of bytes; the next read asks for the others.
            drafts = [self._draft(queue, doubtful.pop(key), job) for key, job in zip(keys, found, strict=False)]
            written = [draft for draft in drafts if draft]
            self._journal.record(written, promise=True)
            self._known |= {(queue, draft.id, draft.born): None for draft in written}
        while len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]
        return answers

    def _doubtful(self, queue: Queue, requests: Sequence[Push], answers: Answers) -> Iterator[Doubtful]:
        for request, answer in zip(requests, answers, strict=True):
            if not isinstance(answer, Pushed):
                continue
            for job, moved in zip(request.jobs, answer.jobs, strict=True):
                repeated = answer.repeated or moved.event is Event.KEPT
                if repeated and (queue, moved.id, moved.born) not in self._known:
                    batch = request.mark.name.partition("/")[0] if request.mark and answer.repeated else ""
                    # Without a mark, an import of push_in is told again, and its request has no bodies.
                    is_new = request.mark and moved.event is not Event.KEPT
                    is_same = is_new and (request.made_ids or job.id == moved.id)
                    yield Doubtful(job if is_same else None, moved, batch, answer.now)

    def _draft(self, queue: Queue, doubtful: Doubtful, found: Job | None) -> Draft | None:
        """None for a job that is gone and that the request does not describe: the process that ended it wrote that
        down.
        """
        job, moved, batch, ts = doubtful
        if found is not None and found.born == moved.born:
            body, attempt, due_at = found.body, found.attempt, found.due_at
            ttl_ms = max(found.expires_at - found.born, 1) if found.expires_at else 0
            tries, priority, attributes = found.tries, found.priority, found.attributes
        elif job is not None:
            # A mark outlives its jobs; the request that repeats the mark holds them again.
            body, attempt, due_at, ttl_ms = job.body, moved.attempt, moved.due_at, job.ttl_ms
            tries, priority, attributes = job.tries, job.priority, job.attributes
        else:
            return None
        text: dict[str, Any] = body_fields(body)
        return Draft(
            ts=ts,
            event=Event.ACCEPTED if moved.event is Event.KEPT else moved.event,
            pool=self._pool,
            namespace=queue.namespace,
            queue=queue.name,
            id=moved.id,
            born=moved.born,
            attempt=attempt,
            due_at=due_at,
            priority=priority,
            ttl=ttl_ms,
            tries=tries,
            reason=REPEATED,
            attributes=attributes,
            batch=batch,
            was=moved.was,
            **text,
        )


def has_repeated(answers: Answers) -> bool:
    for answer in answers:
        if isinstance(answer, Pushed):
            if answer.repeated:
                return True
            for moved in answer.jobs:
                if moved.event is Event.KEPT:
                    return True
    return False


def _unsure(answers: Answers, error: DuetimeError) -> Answers:
    """The answers with an error in place of those that would promise a job that may be in no journal."""
    unsure = StoreUnavailable(f"the push is in the store, perhaps not in the journal: {error.message}", unknown=True)
    return [unsure if has_repeated([answer]) else answer for answer in answers]
