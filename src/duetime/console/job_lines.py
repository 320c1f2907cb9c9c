"""A job as a line of JSON, in the form that `duetime push --file` takes."""

import msgspec

from duetime.model.ids import IdMaker
from duetime.model.job import Job, NewJob, State
from duetime.wire import convert
from duetime.wire.messages import JobIn

_make_id = IdMaker().make


def job_line(job: Job, now: int) -> bytes:
    """A line that pushes the job again as a new one: with its due time and what is left of its ttl at `now`.

    A dead job has no due time and no ttl any more; it would be due immediately.
    """
    new = NewJob(
        id=job.id,
        body=job.body,
        due_at=None if job.state is State.DEAD else job.due_at,
        ttl_ms=max(job.expires_at - now, 1) if job.expires_at else 0,
        tries=job.tries,
        priority=job.priority,
        attributes=job.attributes,
    )
    return msgspec.json.encode(convert.job_in(new)) + b"\n"


def read_job_line(line: bytes) -> NewJob:
    return convert.new_job(msgspec.json.decode(line, type=JobIn), _make_id)
