"""The page Tasks: what the tries of each task came to and how long they ran, over the last hour, day or week."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from starlette.responses import Response

from duetime.console.pages.history_charts import history_charts
from duetime.console.queue_history import SPANS
from duetime.console.rate_history import quantile
from duetime.console.visit import Visit, chosen
from duetime.metrics.recorder import RUN_S

MOST = 200
SORTS: Mapping[str, Callable[["TaskRow"], Any]] = {
    "done": lambda one: -(one.done + one.failed),
    "task": lambda one: one.task,
    "namespace": lambda one: one.namespace,
    "failed": lambda one: -one.failed,
    "run": lambda one: -(one.run[1] or 0),
}


class TaskRow(NamedTuple):
    """`run` has the median and p99 in seconds of how long the tries of the span took."""

    pool: str
    namespace: str
    task: str
    done: int
    failed: int
    run: tuple[float | None, float | None]


async def show_tasks(visit: Visit) -> Response:
    """All tasks, the one with the most tries first; with `task`, its charts as well."""
    span = chosen(list(SPANS), visit.query.get("history", ""))
    history = visit.parts.live.meters.tasks
    rows = [
        TaskRow(
            pool,
            namespace,
            task,
            round(gain.counts.get("finished", 0)),
            round(gain.counts.get("failed", 0)),
            (quantile(gain.run, 0.5, RUN_S), quantile(gain.run, 0.99, RUN_S)),
        )
        for (pool, namespace, task), gain in (await history.sums(span)).items()
        if visit.sees(pool, namespace)
    ]
    rows = visit.sort(sorted(rows, key=lambda one: one.task), SORTS)
    task, charts = visit.query.get("task", ""), ()
    if task:
        space = visit.given("pool"), visit.given("namespace")
        visit.check_sees(*space)
        points = await history.points((*space, task), span)
        charts = history_charts(visit, points, span, ("rates", "run"), ("finished", "failed"))
    return await visit.page(
        "tasks.html", rows=rows[:MOST], history=span, histories=list(SPANS), task=task, charts=charts
    )
