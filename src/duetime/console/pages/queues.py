"""The page of all queues, and the page of one: what waits and when it falls due, its rules, its totals by day."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from starlette.responses import Response

from duetime.callbacks.topic_registry import TopicAddress
from duetime.console.action_log import changes
from duetime.console.charts import Bar
from duetime.console.formats import number
from duetime.console.pages.overview import day_bars
from duetime.console.queue_looks import LiveQueue
from duetime.console.visit import Visit, chosen, link, queue_link
from duetime.metrics.meters import Labels
from duetime.model.clock import rfc3339
from duetime.model.errors import InvalidRequest
from duetime.model.job import DAY_MS, State
from duetime.model.names import Queue
from duetime.stores.base import RulesChange
from duetime.wire.messages import MAX_CAP

PER_PAGE = 50
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
DUE_SPANS: Mapping[str, tuple[int, int, int]] = {
    "minutes": (MINUTE_MS, 60, 10),
    "hours": (HOUR_MS, 48, 6),
    "days": (DAY_MS, 31, 5),
}
"""The width of a bar, how many bars there are, and how many there are from one label to the next."""
SORTS: Mapping[str, Callable[[LiveQueue], Any]] = {
    "queue": lambda line: line.queue,
    "ready": lambda line: -line.counts.ready,
    "delayed": lambda line: -line.counts.delayed,
    "leased": lambda line: -line.counts.leased,
    "dead": lambda line: -line.counts.dead,
    "late": lambda line: -line.late_ms,
    "next": lambda line: line.head if line.head is not None else float("inf"),
}


async def list_queues(visit: Visit) -> Response:
    """Sorted by name, only the queues of this page are counted; any other order needs the counts of all queues."""
    live, sort = visit.parts.live, chosen(list(SORTS), visit.query.get("sort", ""))
    wanted, counting = visit.query.get("find", "").strip(), False
    if sort == "queue":
        found, problems = await live.looks.names()
        places = sorted(place for place in found if _is_wanted(visit, wanted, *place))
    else:
        look = await live.looks.look_for_page(is_partial=visit.is_partial)
        lines = [line for line in look.lines if _is_wanted(visit, wanted, line.pool, line.queue)]
        lines.sort(key=lambda line: (SORTS[sort](line), line.queue))
        places, problems = [(line.pool, line.queue) for line in lines], look.problems
        counting = not look.is_known
    pages = max(1, -(-len(places) // PER_PAGE))
    page = min(read_number(visit.query.get("page", ""), 1), pages)
    shown = await live.looks.lines_of(places[(page - 1) * PER_PAGE : page * PER_PAGE])
    _, rates = await live.meters.now()
    rules = await asyncio.gather(*(visit.parts.pools.engine(one.pool).configure(one.queue) for one in shown))
    late = await live.meters.lateness([(one.pool, *one.queue) for one in shown])
    return visit.page(
        "queues.html",
        rows=[
            (line, one.paused, *_rates(rates, line), lateness)
            for line, one, lateness in zip(shown, rules, late, strict=True)
        ],
        sort=sort,
        sorts=list(SORTS),
        find=wanted,
        page=page,
        pages=pages,
        total=len(places),
        problems=problems,
        counting=counting,
        many_pools=len(visit.parts.pools.names) > 1,
    )


def _is_wanted(visit: Visit, wanted: str, pool: str, queue: Queue) -> bool:
    return visit.session.sees(pool, queue.namespace) and wanted.lower() in str(queue).lower()


def _rates(rates: Mapping[str, Mapping[Labels, float]], line: LiveQueue) -> tuple[float, float]:
    labels = (line.pool, *line.queue)
    return rates["accepted"].get(labels, 0.0), rates["finished"].get(labels, 0.0)


def read_number(text: str, least: int = 0) -> int:
    return max(int(text), least) if text.isascii() and text.isdigit() and len(text) < 10 else least


async def show_queue(visit: Visit) -> Response:
    pool, queue, engine = visit.pool(), visit.queue(), visit.engine()
    span = chosen(list(DUE_SPANS), visit.query.get("due", ""))
    [counts], [head], rules, [totals] = await asyncio.gather(
        engine.store.counts([queue]),
        engine.store.heads([queue]),
        engine.configure(queue),
        engine.store.totals([queue]),
    )
    _, rates = await visit.parts.live.meters.now()
    line = LiveQueue(pool, queue, counts, head)
    return visit.page(
        "queue.html",
        line=line,
        rules=rules,
        rates=_rates(rates, line),
        lateness=(await visit.parts.live.meters.lateness([(pool, *queue)]))[0],
        totals=totals.running,
        days=day_bars(visit, totals.days),
        due=await _due_bars(visit, pool, queue, counts.now, span),
        span=span,
        spans=list(DUE_SPANS),
        is_topic=await visit.parts.topics.topics.exists(TopicAddress(pool, queue)),
        states=list(State),
    )


async def _due_bars(visit: Visit, pool: str, queue: Queue, now: int, span: str) -> list[Bar]:
    """How many jobs fall due in each stretch ahead; the first bar is the minute, hour or day that has already begun."""
    width, count, labelled = DUE_SPANS[span]
    start = now // width * width
    edges = [start + width * step for step in range(count + 1)]
    found = await visit.parts.pools.engine(pool).store.due_histogram(queue, edges)
    bars: list[Bar] = []
    for place, (low, value) in enumerate(zip(edges, found, strict=False)):
        text = rfc3339(low)
        label = text[5:10] if span == "days" else text[11:16]
        address = queue_link(pool, queue, "jobs", state="delayed", since=low, until=low + width)
        title = f"{text[:16].replace('T', ' ')} UTC: {number(value)}"
        bars.append(Bar(value, title, label if place % labelled == 0 else "", address))
    return bars


# --- actions


async def pause(visit: Visit) -> Response:
    return await _switch(visit, paused=True)


async def resume(visit: Visit) -> Response:
    return await _switch(visit, paused=False)


async def _switch(visit: Visit, *, paused: bool) -> Response:
    queue = visit.queue()
    await visit.engine().configure(queue, RulesChange(paused=paused))
    action = "pause" if paused else "resume"
    await visit.log(action, queue)
    return visit.go(text=visit.say(f"queue.{action}_done", queue=queue))


async def change_rules(visit: Visit) -> Response:
    queue, engine = visit.queue(), visit.engine()
    change = RulesChange(
        strict=visit.field("strict") == "on",
        expired_to_dead=visit.field("expired_to_dead") == "on",
        offline=visit.field("offline") == "on",
        max_jobs=_cap(visit, "max_jobs"),
        max_body=_cap(visit, "max_body"),
    )
    before, after = await engine.configure(queue), await engine.configure(queue, change)
    await visit.log("rules", queue, changes(before, after, after.__struct_fields__))
    return visit.go(text=visit.say("queue.rules_done", queue=queue))


def _cap(visit: Visit, name: str) -> int:
    text = visit.field(name).strip() or "0"
    if not text.isascii() or not text.isdigit() or int(text) > MAX_CAP:
        raise InvalidRequest(f"{name}: {text[:40]!r} is not a number from 0 to {MAX_CAP}")
    return int(text)


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
