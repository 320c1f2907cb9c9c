"""The page of all queues, and the page of one: what waits and when it falls due, its rules, its totals by day."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from starlette.responses import Response

from duetime.callbacks.topic_registry import KIND as TOPICS
from duetime.callbacks.topic_registry import TopicAddress
from duetime.console.action_log import changes
from duetime.console.charts import Bar
from duetime.console.formats import number
from duetime.console.forms import FormReader, whole_number
from duetime.console.pages.history_charts import Chart, history_charts
from duetime.console.pages.jobs import check_queue_exists, count_retrying
from duetime.console.pages.overview import day_bars, overdue_ms
from duetime.console.problems import is_overdue_and_paused
from duetime.console.queue_history import SPANS
from duetime.console.queue_snapshots import INTERNAL, MANY_QUEUES, LiveQueue
from duetime.console.visit import Visit, chosen, link, queue_link
from duetime.metrics.meters import Labels
from duetime.model.errors import InvalidRequest
from duetime.model.job import DAY_MS, State
from duetime.model.names import Queue
from duetime.stores.base import RulesChange
from duetime.wire.messages import MAX_CAP

PER_PAGE = 50
FEW = 5
BATCH = ".batch-"
"""What the name of a batch's queue has between that of its queue and its id."""
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
DUE_SPANS: Mapping[str, tuple[int, int, int]] = {
    "minutes": (MINUTE_MS, 60, 10),
    "hours": (HOUR_MS, 48, 6),
    "days": (DAY_MS, 31, 5),
}
"""The width of a bar, how many bars there are, and how many there are from one label to the next."""
HISTORIES = (*SPANS, "month")
SORTS: Mapping[str, Callable[[LiveQueue], Any]] = {
    "queue": lambda line: (line.is_internal, line.queue, line.pool),
    "ready": lambda line: -line.counts.ready,
    "delayed": lambda line: -line.counts.delayed,
    "leased": lambda line: -line.counts.leased,
    "dead": lambda line: -line.counts.dead,
    "late": lambda line: -line.late_ms,
    "next": lambda line: line.head if line.head is not None else float("inf"),
}


class QueueRow(NamedTuple):
    """`late_ms` also counts for a paused queue; `spark` is what was finished per second, by sample; `before` is how
    many jobs were due up to an hour ago, if that is much more or less than now.
    """

    line: LiveQueue
    paused: bool
    coming: float
    going: float
    lateness: tuple[float | None, float | None]
    late_ms: int
    kind: str
    spark: Sequence[float]
    before: int | None


async def list_queues(visit: Visit) -> Response:
    """Queues without jobs are hidden unless they are asked for. Where there are many queues and the order is that of
    their names, only the queues of this page are counted.
    """
    live, sort = visit.parts.live, visit.query.get("sort", "").removeprefix("-")
    wanted, counting, idle = visit.query.get("find", "").strip(), False, visit.query.get("idle", "") == "show"
    hidden = 0
    found, problems = await live.snapshots.names()
    _, rates = await live.meters.now()
    sorts: dict[str, Callable[[LiveQueue], Any]] = {
        **SORTS,
        "in": lambda line: -_rates(rates, line)[0],
        "out": lambda line: -_rates(rates, line)[1],
        "cold": lambda line: -line.counts.cold,
    }
    if chosen(list(sorts), sort) == "queue" and len(found) > MANY_QUEUES:
        wished = (place for place in found if _is_wanted(visit, wanted, *place))
        places = visit.sort(wished, {"queue": lambda place: (place[1].name.startswith(INTERNAL), place)})
    else:
        snapshot = await live.snapshots.for_page(is_partial=visit.is_partial)
        lines = [line for line in snapshot.lines if _is_wanted(visit, wanted, line.pool, line.queue)]
        if not idle and not wanted:
            busy = [line for line in lines if line.counts.total]
            hidden, lines = len(lines) - len(busy), busy
        lines = visit.sort(sorted(lines, key=lambda line: line.queue), sorts)
        places, problems = [(line.pool, line.queue) for line in lines], snapshot.problems
        counting = not snapshot.is_known
    page = visit.paged(places, PER_PAGE)
    shown = await live.snapshots.lines_of(page.rows)
    return await visit.page(
        "queues.html",
        rows=await _rows(visit, shown, rates),
        find=wanted,
        idle=idle,
        hidden=hidden,
        page=page,
        problems=problems,
        counting=counting,
        is_tiered=any(visit.is_tiered(line.pool) for line in shown),
    )


async def _rows(
    visit: Visit, shown: Sequence[LiveQueue], rates: Mapping[str, Mapping[Labels, float]]
) -> list[QueueRow]:
    live = visit.parts.live
    rules = await asyncio.gather(*(visit.parts.pools.engine(one.pool).store.configure(one.queue) for one in shown))
    lateness = await live.meters.lateness([(one.pool, *one.queue) for one in shown])
    overdue = await overdue_ms(visit, [one for one in shown if is_overdue_and_paused(one)])
    topics = {TopicAddress.of_key(record.key) for record in visit.parts.registry_copy.list_records(TOPICS)}
    rows: list[QueueRow] = []
    for line, rule, late in zip(shown, rules, lateness, strict=True):
        spark = live.meters.queues.finished((line.pool, *line.queue))
        rows.append(
            QueueRow(
                line,
                rule.paused,
                *_rates(rates, line),
                late,
                line.late_ms or overdue.get((line.pool, line.queue), 0),
                kind_of(line.queue, is_topic=TopicAddress(line.pool, line.queue) in topics),
                spark if any(spark) else (),
                much_different(live.meters.queues.backlog_before((line.pool, *line.queue)), line.counts.ready),
            )
        )
    return rows


def much_different(before: int | None, now: int) -> int | None:
    """`before` if it differs from now by a fifth and by more than a few; else None."""
    if before is None or abs(now - before) <= max(FEW, max(now, before) // 5):
        return None
    return before


def kind_of(queue: Queue, *, is_topic: bool) -> str:
    """What is special about a queue: topic, batch (the queue of one), internal (of Duetime itself); else empty."""
    if queue.name.startswith(INTERNAL):
        return "internal"
    if is_topic:
        return "topic"
    return "batch" if BATCH in queue.name else ""


def _is_wanted(visit: Visit, wanted: str, pool: str, queue: Queue) -> bool:
    return visit.sees(pool, queue.namespace) and wanted.lower() in str(queue).lower()


def _rates(rates: Mapping[str, Mapping[Labels, float]], line: LiveQueue) -> tuple[float, float]:
    labels = (line.pool, *line.queue)
    return rates["accepted"].get(labels, 0.0), rates["finished"].get(labels, 0.0)


async def show_queue(visit: Visit) -> Response:
    pool, queue, engine = visit.pool(), visit.queue(), visit.engine()
    await check_queue_exists(visit, pool, queue)
    span = chosen(list(DUE_SPANS), visit.query.get("due", ""))
    history = chosen(HISTORIES, visit.query.get("history", ""))
    [counts], [head], rules, [totals] = await asyncio.gather(
        engine.store.counts([queue]),
        engine.store.heads([queue]),
        engine.store.configure(queue),
        engine.store.totals([queue]),
    )
    meters = visit.parts.live.meters
    _, rates = await meters.now()
    line = LiveQueue(pool, queue, counts, head)
    is_topic = await visit.parts.topics.topics.exists(TopicAddress(pool, queue))
    overdue = await overdue_ms(visit, [line] if is_overdue_and_paused(line) else [])
    retrying, is_all = await count_retrying(visit, counts)
    bars = await _due_bars(visit, pool, queue, counts.now, span)
    if "due" not in visit.query and not any(bar.value for bar in bars) and counts.delayed:
        # The next hour is empty: show the span in which something falls due.
        for wider in ("hours", "days"):
            span, bars = wider, await _due_bars(visit, pool, queue, counts.now, wider)
            if any(bar.value for bar in bars):
                break
    return await visit.page(
        "queue.html",
        line=line,
        rules=rules,
        rates=_rates(rates, line),
        late_ms=line.late_ms or overdue.get((pool, queue), 0),
        lateness=(await meters.lateness([(pool, *queue)]))[0],
        run_time=(await meters.run_times([(pool, *queue)]))[0],
        retrying=retrying,
        retrying_is_all=is_all,
        totals=totals.running,
        days=day_bars(visit, totals.days),
        history=history,
        histories=HISTORIES,
        charts=await _charts(visit, pool, queue, history) if history != "month" else (),
        due=bars,
        span=span,
        spans=list(DUE_SPANS),
        kind=kind_of(queue, is_topic=is_topic),
        is_topic=is_topic,
        states=list(State),
    )


async def _charts(visit: Visit, pool: str, queue: Queue, span: str) -> list[tuple[str, Chart]]:
    points = await visit.parts.live.meters.queues.points((pool, *queue), span)
    return history_charts(visit, points, span, ("rates", "backlog", "lateness", "run"))


async def _due_bars(visit: Visit, pool: str, queue: Queue, now: int, span: str) -> list[Bar]:
    """How many jobs fall due in each stretch ahead; the first bar is the minute, hour or day that has already begun."""
    width, count, labelled = DUE_SPANS[span]
    start = now // width * width
    edges = [start + width * step for step in range(count + 1)]
    found = await visit.parts.pools.engine(pool).store.due_histogram(queue, edges)
    bars: list[Bar] = []
    day = ""
    for place, (low, value) in enumerate(zip(edges, found, strict=False)):
        at = datetime.fromtimestamp(low / 1000, visit.zone)
        label = f"{at:%m-%d}" if span == "days" else f"{at:%H:%M}"
        if span == "hours" and place % labelled == 0 and f"{at:%m-%d}" != day:
            day = f"{at:%m-%d}"
            label = f"{at:%m-%d %H:%M}"
        address = queue_link(pool, queue, "jobs", state="delayed", since=low, until=low + width)
        title = f"{at:%Y-%m-%d %H:%M}: {number(value)}"
        bars.append(Bar(value, title, label if place % labelled == 0 else "", address))
    return bars


# --- actions


async def set_paused(visit: Visit, *, paused: bool) -> Response:
    queue = visit.queue()
    await visit.engine().store.configure(queue, RulesChange(paused=paused))
    action = "pause" if paused else "resume"
    await visit.log(action, queue)
    return visit.go(text=visit.say(f"queue.{action}_done", queue=queue))


async def change_rules(visit: Visit) -> Response:
    queue, engine, form = visit.queue(), visit.engine(), FormReader(visit)
    change = RulesChange(
        strict=visit.field("strict") == "on",
        expired_to_dead=visit.field("expired_to_dead") == "on",
        offline=visit.field("offline") == "on",
        max_jobs=form.read("max_jobs", lambda text: whole_number(text, most=MAX_CAP), 0),
        max_body=form.read("max_body", lambda text: whole_number(text, most=MAX_CAP), 0),
    )
    form.check()
    before, after = await engine.store.configure(queue), await engine.store.configure(queue, change)
    await visit.log("rules", queue, changes(before, after, after.__struct_fields__))
    return visit.go(text=visit.say("queue.rules_done", queue=queue))


async def purge(visit: Visit) -> Response:
    queue = visit.queue()
    if visit.field("confirm").strip() != queue.name:
        raise InvalidRequest(visit.say("queue.purge_confirm", queue=queue.name))
    states = [State(state) for state in visit.all_of("state") if state in set(State)]
    if not states:
        raise InvalidRequest(visit.say("queue.purge_nothing"))
    removed = await visit.engine().purge(queue, states)
    await visit.log("purge", queue, f"{', '.join(states)}: {removed}")
    gone = set(states) == set(State)
    return visit.go(link("queues") if gone else "", visit.say("queue.purge_done", count=number(removed), queue=queue))
