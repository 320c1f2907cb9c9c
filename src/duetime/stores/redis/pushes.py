"""What a push sends to Redis and what comes back: the arguments and answers of lua/push.lua and lua/put_back.lua.

Requests of one call share runs of a script. A request with a repair mark (`repair_mark`) is put back by
lua/put_back.lua, which keeps its marks by job; every other request is pushed by lua/push.lua.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Protocol

from duetime.model.errors import (
    BodyTooLarge,
    DuetimeError,
    ExpiresBeforeDue,
    JobExists,
    MarkMismatch,
    QueueFull,
    TopicOffline,
)
from duetime.model.job import STEP_BYTES, Event, IfExists, Moved, NewJob, chunks, payload_bytes
from duetime.stores.base import REPAIR_LIFE_MS, Mark, Push, Pushed, repair_mark
from duetime.stores.redis.codec import BRIEF, pack_options, read_marked, read_moved
from duetime.stores.redis.pipe import Argument


class Batch(Protocol):
    """Requests that share one run of a script."""

    script: str
    requests: Sequence[Push]

    def arguments(self) -> list[Argument]:
        """What the script takes after now."""
        ...

    def read(self, answer: Any) -> list[Pushed | DuetimeError] | None:
        """Returns the answer to each request, or None if nothing was done and the batch must be split."""
        ...

    def split(self) -> "Sequence[Batch]":
        """The same requests in smaller batches, for when the batch as a whole was refused."""
        ...


def batches(requests: Sequence[Push]) -> Iterator[Batch]:
    """Requests in batches that keep one run short. A request is never split."""
    for is_repair, run in groupby(requests, _is_repair):
        if is_repair:
            yield from map(PutBackBatch, chunks(run, size=_weight, distinct=lambda request: [request.jobs[0].id]))
        else:
            yield from map(PushBatch, chunks(run, size=_weight, count=lambda request: len(request.jobs)))


def _is_repair(request: Push) -> bool:
    """Returns True for a lost job that is put back under its repair mark."""
    is_one_kept_job = request.mark is not None and len(request.jobs) == 1 and request.if_exists is IfExists.KEEP
    return is_one_kept_job and request.mark == repair_mark(request.jobs[0])


def _weight(request: Push) -> int:
    return sum([payload_bytes(job) for job in request.jobs])


class PushBatch:
    """Requests for lua/push.lua. Those that can be merged go as one request: its script is shorter, and its answer."""

    script = "push"

    def __init__(self, requests: Sequence[Push], *, merge: bool = True) -> None:
        self.requests = requests
        self._merged: Push | None = None
        kind = requests[0].if_exists
        others = [1 for request in requests if request.mark or request.if_exists is not kind]
        if merge and len(requests) > 1 and kind is not IfExists.REPLACE and not others:
            self._merged = Push([job for request in requests for job in request.jobs], kind)

    def arguments(self) -> list[Argument]:
        requests = [self._merged] if self._merged else self.requests
        ids = [job.id for request in requests for job in request.jobs]
        arguments: list[Argument] = [STEP_BYTES, "1" if len(set(ids)) == len(ids) else "", len(requests)]
        for request in requests:
            groups = _groups(request.jobs)
            arguments += (request.if_exists.value, *mark_arguments(request.mark, request.if_exists), len(groups))
            for group in groups:
                arguments += _group_arguments(group)
        return arguments

    def read(self, answer: Any) -> list[Pushed | DuetimeError] | None:
        now, *answers = answer
        if self._merged is None:
            return [_read_pushed(request, one, now) for request, one in zip(self.requests, answers, strict=True)]
        merged = _read_pushed(self._merged, answers[0], now)
        if not isinstance(merged, Pushed):
            return None  # some of the requests may be fine by themselves
        parts: list[Pushed | DuetimeError] = []
        at = 0
        for request in self.requests:
            parts.append(Pushed(merged.jobs[at : at + len(request.jobs)], merged.now))
            at += len(request.jobs)
        return parts

    def split(self) -> Sequence[Batch]:
        if self._merged:
            return [PushBatch(self.requests, merge=False)]
        return [PushBatch([request]) for request in self.requests]


class PutBackBatch:
    """Requests for lua/put_back.lua: each has one job and its repair mark, and no id occurs twice."""

    script = "put_back"

    def __init__(self, requests: Sequence[Push]) -> None:
        self.requests = requests
        self._jobs = [request.jobs[0] for request in requests]

    def arguments(self) -> list[Argument]:
        arguments: list[Argument] = [STEP_BYTES, REPAIR_LIFE_MS]
        for group in _groups(self._jobs, with_born=False):
            arguments += _group_arguments(group, has_borns=True)
        return arguments

    def read(self, answer: Any) -> list[Pushed | DuetimeError]:
        return read_put_back(self._jobs, answer)

    def split(self) -> Sequence[Batch]:
        return [PutBackBatch([request]) for request in self.requests]


def mark_arguments(mark: Mark | None, if_exists: IfExists) -> tuple[Argument, Argument, Argument, Argument]:
    if mark is None:
        return "", "", "", ""
    return mark.name, mark.digest, mark.life_ms, "1" if mark.brief and if_exists is not IfExists.REPLACE else ""


def _groups(jobs: Sequence[NewJob], *, with_born: bool = True) -> list[Sequence[NewJob]]:
    """Splits jobs into runs of neighbours that share their options."""
    alike = [
        job.attributes
        or (job.due_at is None, job.ttl_ms, job.tries, job.priority, job.born if with_born else 0, job.attempt)
        for job in jobs
    ]
    if jobs and not jobs[0].attributes and alike.count(alike[0]) == len(jobs):
        return [jobs]
    # Jobs with attributes are rare and mostly differ, so each is a group of its own.
    marked = [
        (index, ()) if job.attributes else (-1, like) for index, (job, like) in enumerate(zip(jobs, alike, strict=True))
    ]
    return [[jobs[i] for i in run] for _, run in groupby(range(len(jobs)), marked.__getitem__)]


def _group_arguments(group: Sequence[NewJob], *, has_borns: bool = False) -> list[Argument]:
    """What `q.read_group` of lua/modules/add.lua reads."""
    first, ids = group[0], [job.id for job in group]
    own_delays = first.due_at is None
    times = [job.delay_ms if job.due_at is None else job.due_at for job in group]
    least, greatest = min(times), max(times)
    arguments: list[Argument] = [pack_options(first), len(group)]
    if own_delays and least == greatest and not has_borns:
        arguments += (least, "", "", *ids)
    else:
        columns = (times, ids, [job.born for job in group]) if has_borns else (times, ids)
        rows: list[Argument] = [""] * (len(columns) * len(group))
        for place, column in enumerate(columns):
            rows[place :: len(columns)] = column
        arguments += ("+" if own_delays else "", least, greatest, *rows)
    arguments += [job.body for job in group]
    return arguments


def _read_pushed(request: Push, answer: Any, now: int) -> Pushed | DuetimeError:
    if isinstance(answer, int):
        return Pushed(_accepted(request, answer, now), now)
    if isinstance(answer, bytes):
        return read_refusal(request.jobs, request.mark, answer.decode())
    if answer and answer[0] == b"repeated":
        if len(answer[1]) == BRIEF.size:
            return Pushed(_accepted(request, *BRIEF.unpack(answer[1])), now, repeated=True)
        return Pushed(list(read_marked(answer[1])), now, repeated=True)
    return Pushed([read_moved(job.id, moved) for job, moved in zip(request.jobs, answer, strict=True)], now)


def _accepted(request: Push, born: int, now: int) -> list[Moved]:
    """The answer for a request of which all jobs were accepted with this born, at this time."""
    return [Moved(Event.ACCEPTED, job.id, born, 0, job.due(now)) for job in request.jobs]


def read_put_back(jobs: Sequence[NewJob], answer: Any) -> list[Pushed | DuetimeError]:
    """What lua/put_back.lua says about each job."""
    now, *answers = answer
    found: list[Pushed | DuetimeError] = []
    for job, one in zip(jobs, answers or [b""] * len(jobs), strict=True):
        kind, packed = one[:1], one[1:]
        if kind in (b"", b"k", b"r"):
            as_given = Moved(Event.ACCEPTED, job.id, job.born, job.attempt, job.due(now))
            found.append(Pushed([read_moved(job.id, packed) if packed else as_given], now, repeated=kind == b"r"))
        else:
            found.append(read_refusal(jobs, None, one.decode()))
    return found


def read_refusal(jobs: Sequence[NewJob], mark: Mark | None, text: str) -> DuetimeError:
    """The error for the reason that a script gives for refusing these jobs, or one of them."""
    code, *numbers = text.split(" ")
    if code == "m":
        return MarkMismatch.of(mark.name if mark else "")
    if code == "o":
        return TopicOffline.of_queue()
    if code == "f":
        return QueueFull.of(int(numbers[0]))
    job = jobs[int(numbers[0]) - 1]
    if code == "b":
        return BodyTooLarge.of(job.id, len(job.body), int(numbers[1]))
    if code == "e":
        return ExpiresBeforeDue.of(job.id)
    return JobExists.of(job.id)
