"""`duetime dead ...`: the jobs that ran out of tries, were killed, or expired where the queue keeps those."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

import typer

from duetime.cli.consume import SomeRefused, describe_move
from duetime.cli.jobs import PAGE, IdArgument, LimitOption, QueueArgument, describe_job, show_jobs, show_walk, walk
from duetime.cli.options import Target, takes_options
from duetime.cli.output import Answer, job_document, moved_document, note
from duetime.cli.queues import show_removed
from duetime.client.client import QueueClient
from duetime.model.clock import duration_ms, instant_ms
from duetime.model.errors import Conflict, InvalidRequest, JobNotFound
from duetime.model.job import STEP_JOBS, Job, Moved, State, chunks
from duetime.model.names import check_id
from duetime.wire.payload import describe

SomeIdsArgument = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Ids of dead jobs.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


class NotDead(Conflict):
    """The job is not among the dead letters."""

    code = "not_dead"


@takes_options
def list_dead(
    target: Target,
    queue: Annotated[str | None, typer.Argument(metavar="QUEUE", help="Which queue; all if not given.")] = None,
    limit: LimitOption = PAGE,
) -> None:
    """List dead letters with the last line of their error, longest dead first.

    Examples:
        duetime dead list
        duetime dead list mail --limit 0
    """
    with target.connect() as client:
        if queue is not None:
            show_jobs(client.queue(queue), State.DEAD, limit, as_json=target.json)
            return
        names = sorted(status.queue.name for status in client.queues() if status.counts.dead)
        every = itertools.chain.from_iterable(walk(client.queue(name), State.DEAD) for name in names)
        show_walk(every, State.DEAD, limit, as_json=target.json, nothing=f"no dead jobs in {target.space}")


@takes_options
def show(queue: QueueArgument, job_id: IdArgument, target: Target) -> None:
    """Show one dead letter, with the error that ended it.

    Examples:
        duetime dead show mail welcome-42
    """
    with target.connect() as client:
        job = _dead_job(client.queue(queue), check_id(job_id))
    target.answer.show(job_document(job), describe_job(job))


def _dead_job(queue: QueueClient, job_id: str) -> Job:
    job = queue.get(job_id)
    if job.state is not State.DEAD:
        raise NotDead(f"the job {job_id!r} of {queue.name} is {job.state}, not dead", id=job_id, state=job.state)
    return job


@dataclass(frozen=True)
class RespawnOptions:
    ids: SomeIdsArgument = field(default=None)
    every: Annotated[bool, typer.Option("--all", help="All dead letters of the queue.")] = False
    limit: Annotated[int, typer.Option(min=0, metavar="N", help="The N longest dead.")] = 0
    ttl: Annotated[str, typer.Option(metavar="DURATION", help="A new time to live; 0 keeps them.")] = "0"
    tries: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="New tries; as before if not given.", show_default=False)
    ] = None
    matching: Annotated[
        str, typer.Option(metavar="TEXT", help="Those with this in their error, or in their task and arguments.")
    ] = ""
    after: Annotated[str, typer.Option(metavar="TIME", help="Those that died at this time or later.")] = ""
    before: Annotated[str, typer.Option(metavar="TIME", help="Those that died before this time.")] = ""

    @property
    def is_filtered(self) -> bool:
        return bool(self.matching or self.after or self.before)

    def fits(self, job: Job) -> bool:
        if self.after and job.dead_at < instant_ms(self.after):
            return False
        if self.before and job.dead_at >= instant_ms(self.before):
            return False
        return self.matching in job.error or self.matching in (describe(job.body) or "")


@takes_options
def respawn(queue: QueueArgument, options: RespawnOptions, target: Target) -> None:
    """Bring dead jobs back: ready immediately, with all their tries.

    Say which: ids, --limit N, --all, or those that match a text, a range of times (as 2030-01-31T09:00:00Z), or both.

    Examples:
        duetime dead respawn mail welcome-42
        duetime dead respawn mail --all --tries 3
    """
    if sum((bool(options.ids), options.every, bool(options.limit), options.is_filtered)) != 1:
        raise InvalidRequest("respawn needs ids, --limit N, --all, or a filter (--matching, --after, --before)")
    answer = target.answer
    ids = [check_id(job_id) for job_id in options.ids] if options.ids else None
    back: set[str] = set()
    with target.connect() as client:
        queue_client = client.queue(queue)
        if options.is_filtered:
            ids = [job.id for job in walk(queue_client, State.DEAD) if options.fits(job)]
        for moved in _respawn(queue_client, ids, options):
            back.update(one.id for one in moved)
            for one in moved:
                answer.show(moved_document(queue_client.name, one), describe_move(one))
    if missing := [job_id for job_id in options.ids or () if job_id not in back]:
        raise JobNotFound(f"not among the dead letters of {queue_client.name}: {', '.join(missing)}", ids=missing)
    if not back and not target.json:
        note(f"no dead letters in {queue_client.name}")


def _respawn(queue: QueueClient, ids: list[str] | None, options: RespawnOptions) -> Iterator[list[Moved]]:
    """Respawns in steps, so that the progress of a million dead letters shows."""
    if ids is not None:
        for some in chunks(ids):
            yield queue.dead.respawn(some, ttl=options.ttl, tries=options.tries)
        return
    # The number is fixed at the start: jobs that die again meanwhile are not brought back a second time.
    left = options.limit or queue.counts().dead
    while left > 0:
        moved = queue.dead.respawn(limit=min(left, STEP_JOBS), ttl=options.ttl, tries=options.tries)
        yield moved
        left = left - len(moved) if moved else 0


@dataclass(frozen=True)
class DeleteOptions:
    ids: SomeIdsArgument = field(default=None)
    every: Annotated[bool, typer.Option("--all", help="All dead letters of the queue.")] = False
    yes: YesOption = False


@takes_options
def delete(queue: QueueArgument, options: DeleteOptions, target: Target) -> None:
    """Remove dead letters for good: some by id, or --all.

    Examples:
        duetime dead delete mail welcome-42
        duetime dead delete mail --all --yes
    """
    if bool(options.ids) == options.every:
        raise InvalidRequest("delete needs ids or --all")
    answer = target.answer
    with target.connect() as client:
        queue_client = client.queue(queue)
        if options.every:
            _clear(answer, queue_client, yes=options.yes)
            return
        # All are looked at before one is removed: an id that lives must not be cancelled by mistake.
        ids = [_dead_job(queue_client, check_id(job_id)).id for job_id in options.ids or ()]
        results = queue_client.dead.delete(ids)
    gone = [one for one in results if one is not None]
    show_removed(answer, queue_client.name, len(gone))
    if len(gone) < len(ids):
        raise SomeRefused(f"{len(ids) - len(gone)} of {len(ids)} were removed by another client")


@takes_options
def flush(queue: QueueArgument, target: Target, yes: YesOption = False) -> None:
    """Remove all dead letters of a queue for good.

    Examples:
        duetime failed flush mail --yes
    """
    answer = target.answer
    with target.connect() as client:
        queue_client = client.queue(queue)
        _clear(answer, queue_client, yes=yes)


def _clear(answer: Answer, queue_client: QueueClient, *, yes: bool) -> None:
    answer.confirm(f"Remove {queue_client.counts().dead:,} dead letters of {queue_client.name} for good?", yes=yes)
    show_removed(answer, queue_client.name, queue_client.dead.clear())


@takes_options
def prune(
    queue: QueueArgument,
    older_than: Annotated[str, typer.Option(metavar="DURATION", help="Dead for longer than this, such as 30d.")],
    target: Target,
    yes: YesOption = False,
) -> None:
    """Remove dead letters that have been dead for a long time.

    Goes from the longest dead on and touches nothing but dead letters, whatever comes back to life meanwhile.

    Examples:
        duetime dead prune mail --older-than 30d
    """
    age_ms = duration_ms(older_than)
    answer = target.answer
    removed = 0
    with target.connect() as client:
        queue_client = client.queue(queue)
        before = queue_client.counts().now - age_ms
        if not yes:
            old = itertools.takewhile(lambda job: job.dead_at < before, walk(queue_client, State.DEAD))
            answer.confirm(f"Remove {sum(1 for _ in old)} dead letters of {queue_client.name} for good?", yes=False)
        # The first page is in order of death, so its old ones are the first.
        while count := sum(job.dead_at < before for job in queue_client.dead.list_jobs(limit=STEP_JOBS).jobs):
            removed += queue_client.dead.clear(limit=count)
    show_removed(answer, queue_client.name, removed)
