"""Finishing jobs with what follows from it, as one step: new jobs, and results that are kept for a while."""

from collections.abc import Sequence

from duetime.model.errors import DuetimeError, LeaseLost
from duetime.model.job import STEP_JOBS, Moved, within_step
from duetime.model.names import Queue
from duetime.stores.base import Push, results_wake
from duetime.stores.finishes import Finish, Finished, JoinCount, KeptResult, following_jobs
from duetime.stores.sql import rules
from duetime.stores.sql.rows import JobRow, QueueRow
from duetime.stores.sql.step import Step, announce, changing, earliest, find_jobs

_COUNT, _AFTER_COUNTS = "\x01", "\x02"
"""The prefix of the name of a join, and a text that is greater than all such names."""


def finish(step: Step, queue: Queue, finishes: Sequence[Finish]) -> list[Finished | DuetimeError | None]:
    ids = [one.lease.id for one in finishes]
    ids += dict.fromkeys(job.id for one in finishes for job in one.may_follow)
    step.read_ahead([("heads", {}), ("find_jobs", {"ids": ids})])
    with changing(step, queue) as queue_row:
        head = earliest(step, queue_row)
        jobs = find_jobs(step, queue, queue_row, ids)
        plan = rules.PushPlan(queue_row, jobs, step.now, largest=step.max_body, follow=True)
        joins = Joins(step, queue, finishes)
        answers = [_finish(queue_row, jobs, plan, joins, one) for one in finishes]
        done = [one for one, answer in zip(finishes, answers, strict=True) if isinstance(answer, Finished)]
        if done:
            step.execute("delete_jobs", queue=queue_row.id, ids=[one.lease.id for one in done])
        if plan.removed:
            step.execute("delete_jobs", queue=queue_row.id, ids=list(plan.removed))
        step.insert_jobs(list(plan.inserted.values()))
        joins.write()
        _keep_results(step, queue, [one for one in done if one.keeps_result])
        if not queue_row.paused:
            announce(step, queue, head, plan.earliest)
    return answers


def _finish(
    queue_row: QueueRow, jobs: dict[str, JobRow], plan: rules.PushPlan, joins: "Joins", one: Finish
) -> Finished | LeaseLost | DuetimeError | None:
    job, joined = jobs.get(one.lease.id), joins.count_with(one)
    request = Push(following_jobs(one, joined))
    if rules.holds(job, one.lease) and (refusal := plan.refusal(request)):
        return refusal
    acked = rules.ack(queue_row, job, one.lease, joins.now)
    if not isinstance(acked, Moved):
        return acked
    del jobs[one.lease.id]  # a job that follows may have this id
    joins.note(one, joined)
    return Finished(acked, plan.accept(request).jobs, joins.now, joined)


class Joins:
    """How many finishes the joins of a call have seen. A count is kept as a result, under a name that no id can be."""

    def __init__(self, step: Step, queue: Queue, finishes: Sequence[Finish]) -> None:
        self._step, self._names = step, {"namespace": queue.namespace, "queue": queue.name}
        self.now = step.now
        ids = list({_COUNT + one.join.name for one in finishes if one.join})
        rows = step.fetch("get_results", ids=ids, **self._names, now=self.now) if ids else []
        self._counts = {row[0]: int(row[2]) for row in rows}
        self._changed: dict[str, int] = {}

    def count_with(self, one: Finish) -> int:
        return self._counts.get(_COUNT + one.join.name, 0) + 1 if one.join else 0

    def note(self, one: Finish, joined: int) -> None:
        if one.join is not None:
            is_whole = joined == one.join.of
            self._counts[_COUNT + one.join.name] = 0 if is_whole else joined
            self._changed[_COUNT + one.join.name] = self.now + (0 if is_whole else one.join.life_ms)

    def write(self) -> None:
        """A complete join expires immediately, and the reaper removes it."""
        for name, until in self._changed.items():
            count = b"%d" % self._counts[name]
            self._step.execute("keep_result", id=name, born=0, kept_until=until, result=count, **self._names)


def _keep_results(step: Step, queue: Queue, finishes: Sequence[Finish]) -> None:
    for one in finishes:
        step.execute(
            "keep_result",
            namespace=queue.namespace,
            queue=queue.name,
            id=one.lease.id,
            born=one.lease.born,
            kept_until=step.now + one.result_ttl_ms,
            result=one.result,
        )
    if finishes:
        step.wakes.append(results_wake(queue, [one.lease.id for one in finishes]))


def results(step: Step, queue: Queue, ids: Sequence[str]) -> list[KeptResult | None]:
    asked = {"namespace": queue.namespace, "queue": queue.name, "now": step.now}
    sizes = dict(step.fetch("result_sizes", ids=list(ids[:STEP_JOBS]), **asked)) if ids else {}
    first = list(within_step(ids[:STEP_JOBS], lambda job_id: sizes.get(job_id, 0)))
    present = [job_id for job_id in dict.fromkeys(first) if job_id in sizes]
    rows = step.fetch("get_results", ids=present, **asked) if present else []
    kept = {row[0]: KeptResult(*row) for row in rows}
    return [kept.get(job_id) for job_id in first]


def joins(step: Step, queue: Queue, after: str) -> list[JoinCount]:
    names = {"namespace": queue.namespace, "queue": queue.name, "after": _COUNT + after, "before": _AFTER_COUNTS}
    rows = step.fetch("list_joins", **names, now=step.now, limit=STEP_JOBS)
    return [JoinCount(name.removeprefix(_COUNT), int(count), until - step.now) for name, count, until in rows]


def raise_joins(step: Step, queue: Queue, raised: Sequence[JoinCount]) -> None:
    names = {"namespace": queue.namespace, "queue": queue.name}
    with changing(step, queue):
        rows = step.fetch("get_results", ids=[_COUNT + one.name for one in raised], **names, now=step.now)
        counting = {row[0]: (int(row[2]), row[3]) for row in rows}
        for one in raised:
            count, until = counting.get(_COUNT + one.name, (0, 0))
            step.execute(
                "keep_result",
                id=_COUNT + one.name,
                born=0,
                kept_until=max(until, step.now + one.left_ms),
                result=b"%d" % max(count, one.count),
                **names,
            )
