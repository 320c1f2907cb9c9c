"""`duetime workers` and `duetime worker ...`: the workers of a namespace and their tasks."""

from typing import Annotated

import msgspec

from duetime.cli.options import IdArgument, QueueArgument, Target, argument
from duetime.cli.output import moment, note, safe
from duetime.model.errors import InvalidRequest
from duetime.model.humanise import span
from duetime.model.names import check_id
from duetime.wire.payload import PAUSED_TASKS, RESTARTS, paused_task
from duetime.worker.shared_counters import count, job_output, list_workers, progress_name


def workers(target: Target) -> None:
    """List the workers of the namespace and the jobs that they run longest.

    A worker reports every ten seconds. A worker that was killed stays in the list for up to 25 seconds.

    Examples:
        duetime workers
        duetime workers --json
    """
    with target.connect() as client:
        seen = client.send(list_workers(target.space))
    rows = [(worker, job) for worker in seen.workers for job in worker.running or [None]]
    columns = {
        "host": [safe(worker.host) for worker, _ in rows],
        "pid ": [str(worker.pid) for worker, _ in rows],
        "pool": [f"{worker.concurrency} {safe(worker.pool)}" for worker, _ in rows],
        "queues": [safe(worker.queues) for worker, _ in rows],
        "started": [moment(worker.started_at, seen.now) for worker, _ in rows],
        "jobs ": [str(worker.jobs) for worker, _ in rows],
        "runs": ["" if job is None else f"{safe(job.task)} {safe(job.queue)}/{safe(job.id)}" for _, job in rows],
        "for ": ["" if job is None else span(max(0, seen.now - job.began_at)) for _, job in rows],
    }
    documents = [{"namespace": target.space, **msgspec.to_builtins(worker), "now": seen.now} for worker in seen.workers]
    target.answer.table(documents, columns, nothing=f"no workers in {target.space}")


def restart(target: Target) -> None:
    """Make every worker of the namespace finish its jobs and exit.

    Something has to start them again: systemd, a container or a supervisor.
    """
    with target.connect() as client:
        restarts = client.send(count(target.space, RESTARTS, 1))
    target.answer.show(
        {"namespace": target.space, "restarts": restarts}, f"workers of {target.space} will exit after their jobs"
    )


TaskArgument = Annotated[str, argument("TASK", "The name of the task, such as shop.send.")]


def pause_task(task: TaskArgument, target: Target) -> None:
    """Start no more jobs of a task in any worker of the namespace.

    Waiting jobs use no try, and pushes continue. Other tasks of the queue continue.

    Examples:
        duetime worker pause-task shop.send
    """
    _set_paused(task, target, paused=True)


def resume_task(task: TaskArgument, target: Target) -> None:
    """Start jobs of a task again, within five seconds.

    Examples:
        duetime worker resume-task shop.send
    """
    _set_paused(task, target, paused=False)


def _set_paused(task: str, target: Target, *, paused: bool) -> None:
    if not task:
        raise InvalidRequest("task name must not be empty")
    name = paused_task(task)
    with target.connect(new=paused) as client:
        value = client.send(count(target.space, name))
        if paused != (value > 0):
            by = 1 if paused else -value
            client.send(count(target.space, name, by))
            client.send(count(target.space, PAUSED_TASKS, by))
    document = {"namespace": target.space, "task": task, "paused": paused}
    target.answer.show(document, f"{task} {'is paused' if paused else 'is resumed'}")


def progress(
    queue: QueueArgument,
    job_id: IdArgument,
    target: Target,
) -> None:
    """Show how far a job is, as reported by `current_job().progress(...)`.

    Examples:
        duetime worker progress mail 01JCQ2Y6W3V5Z8T4B7N9M1K0XA
    """
    with target.connect() as client:
        percent = client.send(count(target.space, progress_name(target.queue(queue), check_id(job_id))))
    document = {"namespace": target.space, "queue": queue, "id": job_id, "percent": percent}
    target.answer.show(document, f"{percent} %")


def output(
    queue: QueueArgument,
    job_id: IdArgument,
    target: Target,
) -> None:
    """Show the last lines that a running job logged with `current_job().log(...)`.

    About 2 KB are kept while the job runs; a minute after its end they are gone.

    Examples:
        duetime worker output mail 01JCQ2Y6W3V5Z8T4B7N9M1K0XA
    """
    with target.connect() as client:
        lines = client.send(job_output(target.queue(queue), check_id(job_id))).lines
    document = {"namespace": target.space, "queue": queue, "id": job_id, "lines": lines}
    if lines or target.json:
        target.answer.show(document, "\n".join(map(safe, lines)))
    else:
        note(f"no output of {queue}/{job_id}: it does not run, or has logged nothing")
