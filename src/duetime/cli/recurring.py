"""`duetime recurring ...`: the schedules that workers keep going."""

import msgspec

from duetime.cli.options import Target, takes_options
from duetime.cli.output import Answer, moment, note, safe
from duetime.model.clock import SystemClock
from duetime.model.job import Job, State
from duetime.wire.payload import TICKS
from duetime.worker.recurring import Tick


@takes_options
def list_schedules(target: Target) -> None:
    """List the recurring tasks of the namespace with their next runs."""
    with target.connect() as client:
        queue = client.queue(TICKS)
        jobs = [job for state in (State.LEASED, State.READY, State.DELAYED) for job in queue.list_jobs(state).jobs]
    if not jobs and not target.json:
        note(f"nothing recurs in {target.space}")
        return
    ticks = [_tick(job) for job in jobs]
    now = SystemClock().now_ms()
    documents = [
        {"name": job.id, "task": tick.task, "schedule": tick.schedule, "missed": tick.missed, "next_at": job.due_at}
        for job, tick in zip(jobs, ticks, strict=True)
    ]
    columns = {
        "name": [safe(job.id) for job in jobs],
        "task": [safe(tick.task) for tick in ticks],
        "schedule": [safe(tick.schedule) for tick in ticks],
        "missed": [tick.missed for tick in ticks],
        "next run": [moment(job.due_at, now) for job in jobs],
    }
    Answer(as_json=target.json).table(documents, columns)


def _tick(job: Job) -> Tick:
    """What the job says; anybody may push to this queue, so the body may be no tick."""
    try:
        return msgspec.json.decode(job.body, type=Tick)
    except msgspec.DecodeError:
        return Tick("?", "not a schedule", "skip", job.due_at)
