"""`duetime failed ...`: jobs that ran out of tries, were killed, or expired in a queue that keeps expired jobs."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

from duetime.cli.consume import SomeRefused, describe_move
from duetime.cli.jobs import PAGE, IdArgument, LimitOption, QueueArgument, describe_job, show_jobs, show_walk, walk
from duetime.cli.options import Target, YesOption, argument, flag, option
from duetime.cli.output import StateWord, job_document, moved_document
from duetime.cli.queues import show_removed
from duetime.client.client import QueueClient
from duetime.model.clock import MAX_INSTANT, duration_ms, instant_ms
from duetime.model.errors import Conflict, InvalidRequest, JobNotFound
from duetime.model.humanise import counted
from duetime.model.job import STEP_JOBS, Job, Moved, State, chunks
from duetime.model.names import check_id
from duetime.wire.payload import describe

SomeIdsArgument = Annotated[list[str] | None, argument("ID", "Ids of failed jobs.")]


class NotFailed(Conflict):
    """The job has not failed."""

    code = "not_failed"


def list_failed(
    target: Target,
    queue: Annotated[str | None, argument("QUEUE", "The queue; all queues if not given.")] = None,
    limit: LimitOption = PAGE,
) -> None:
    """List failed jobs with the last line of their error, oldest failure first.

    Examples:
        duetime failed list
        duetime failed list mail --limit 0
    """
    with target.connect() as client:
        if queue is not None:
            show_jobs(client.queue(queue), StateWord.FAILED, limit, target.answer)
            return
        names = sorted(status.queue.name for status in client.queues() if status.counts.dead)
        every = itertools.chain.from_iterable(walk(client.queue(name), State.DEAD) for name in names)
        show_walk(every, StateWord.FAILED, limit, target.answer, nothing=f"no failed jobs in {target.space}")


def show(queue: QueueArgument, job_id: IdArgument, target: Target) -> None:
    """Show a failed job with its last error.

    Examples:
        duetime failed show mail welcome-42
    """
    with target.connect() as client:
        job = _failed_job(client.queue(queue), check_id(job_id))
    target.answer.show(job_document(job), describe_job(job))


def _failed_job(queue: QueueClient, job_id: str) -> Job:
    job = queue.get(job_id)
    if job.state is not State.DEAD:
        raise NotFailed(
            f"job {job_id!r} of {queue.name} must have failed, it is {StateWord.of(job.state)}",
            id=job_id,
            state=job.state,
        )
    return job


@dataclass(frozen=True)
class RetryOptions:
    ids: SomeIdsArgument = field(default=None)
    every: Annotated[bool, flag("All failed jobs of the queue.", "--all")] = False
    limit: Annotated[int, option("N", "The N oldest failures.", min=0)] = 0
    ttl: Annotated[str, option("DURATION", "A new time to live; 0: no limit.")] = "0"
    tries: Annotated[int | None, option("N", "Tries allowed; as before if not given.", min=0)] = None
    matching: Annotated[str, option("TEXT", "Jobs with this text in their error, or in their task and arguments.")] = ""
    after: Annotated[str, option("TIME", "Jobs that failed at this time or later.")] = ""
    before: Annotated[str, option("TIME", "Jobs that failed before this time.")] = ""

    @property
    def is_filtered(self) -> bool:
        return bool(self.matching or self.after or self.before)

    def matches(self, job: Job) -> bool:
        return self.matching in job.error or self.matching in (describe(job.body) or "")


def retry(queue: QueueArgument, options: RetryOptions, target: Target) -> None:
    """Retry failed jobs: they are ready immediately, with all their tries.

    Give ids, --limit N, --all, or a filter: a text, a range of times (as 2030-01-31T09:00:00Z), or both.

    Examples:
        duetime failed retry mail welcome-42
        duetime failed retry mail --all --tries 3
        duetime failed retry mail --matching TimeoutError --after 2030-01-31T09:00:00Z
    """
    if sum((bool(options.ids), options.every, bool(options.limit), options.is_filtered)) != 1:
        raise InvalidRequest("retry must have ids, --limit N, --all, or a filter (--matching, --after, --before)")
    first, end = instant_ms(options.after or 0), instant_ms(options.before or MAX_INSTANT)
    answer = target.answer
    ids = [check_id(job_id) for job_id in options.ids] if options.ids else None
    back: set[str] = set()
    with target.connect() as client:
        queue_client = client.queue(queue)
        if options.is_filtered:
            dead = walk(queue_client, State.DEAD)
            ids = [job.id for job in dead if first <= job.dead_at < end and options.matches(job)]
        for moved in _retry(queue_client, ids, options):
            back.update(one.id for one in moved)
            for one in moved:
                answer.show(moved_document(queue_client.name, one), describe_move(one))
    if missing := [job_id for job_id in options.ids or () if job_id not in back]:
        raise JobNotFound(f"not among the failed jobs of {queue_client.name}: {', '.join(missing)}", ids=missing)
    if not back:
        answer.note(f"no failed jobs in {queue_client.name}")


def _retry(queue: QueueClient, ids: list[str] | None, options: RetryOptions) -> Iterator[list[Moved]]:
    """Retries in steps, so that the progress of a million jobs is visible."""
    if ids is not None:
        for some in chunks(ids):
            yield queue.dead.respawn(some, ttl=options.ttl, tries=options.tries)
        return
    # The number is fixed at the start, so that jobs that fail again meanwhile are not retried a second time.
    left = options.limit or queue.counts().dead
    while left > 0:
        moved = queue.dead.respawn(limit=min(left, STEP_JOBS), ttl=options.ttl, tries=options.tries)
        yield moved
        left = left - len(moved) if moved else 0


@dataclass(frozen=True)
class DeleteOptions:
    ids: SomeIdsArgument = field(default=None)
    every: Annotated[bool, flag("All failed jobs of the queue.", "--all")] = False
    yes: YesOption = False


def delete(queue: QueueArgument, options: DeleteOptions, target: Target) -> None:
    """Delete failed jobs: some by id, or --all.

    Examples:
        duetime failed delete mail welcome-42
        duetime failed delete mail --all --yes
    """
    if bool(options.ids) == options.every:
        raise InvalidRequest("delete must have ids or --all")
    answer = target.answer
    with target.connect() as client:
        queue_client = client.queue(queue)
        if options.every:
            if not options.yes:
                count = queue_client.counts().dead
                answer.confirm(f"Delete {counted(count, 'failed job')} of {queue_client.name}?")
            show_removed(answer, queue_client.name, queue_client.dead.clear())
            return
        # All are checked before one is deleted: a job that has not failed must not be deleted by mistake.
        ids = [_failed_job(queue_client, check_id(job_id)).id for job_id in options.ids or ()]
        results = queue_client.dead.delete(ids)
    gone = [one for one in results if one is not None]
    show_removed(answer, queue_client.name, len(gone))
    if len(gone) < len(ids):
        raise SomeRefused(f"{len(ids) - len(gone)} of {len(ids)} were deleted by another client")


def prune(
    queue: QueueArgument,
    older_than: Annotated[str, option("DURATION", "Failed longer ago than this, such as 30d.")],
    target: Target,
    yes: YesOption = False,
) -> None:
    """Delete jobs that failed a long time ago.

    Starts with the oldest failure. A job that is retried meanwhile is kept.

    Examples:
        duetime failed prune mail --older-than 30d
    """
    age_ms = duration_ms(older_than)
    answer = target.answer
    removed = 0
    with target.connect() as client:
        queue_client = client.queue(queue)
        before = queue_client.counts().now - age_ms
        if not yes:
            old = itertools.takewhile(lambda job: job.dead_at < before, walk(queue_client, State.DEAD))
            answer.confirm(f"Delete {counted(sum(1 for _ in old), 'failed job')} of {queue_client.name}?")
        # The first page is in order of death, so its old ones are the first.
        while count := sum(job.dead_at < before for job in queue_client.dead.list_jobs(limit=STEP_JOBS).jobs):
            removed += queue_client.dead.clear(limit=count)
    show_removed(answer, queue_client.name, removed)
