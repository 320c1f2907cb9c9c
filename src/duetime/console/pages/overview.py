"""The first page: jobs by state, how fast they come and go, how late they are, and what is wrong now."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

import msgspec
from starlette.responses import Response, StreamingResponse

from duetime.alerts.problems import FIRING
from duetime.console.charts import Bar
from duetime.console.formats import number
from duetime.console.live import ProcessState
from duetime.console.meter_samples import JournalLag
from duetime.console.pages.history_charts import history_charts
from duetime.console.problems import (
    SNOOZE_S,
    SNOOZED,
    LiveProblem,
    Snooze,
    from_alerts,
    from_paused,
    from_topic_states,
    from_topics,
    grouped,
    is_overdue_and_paused,
    parse_key,
    snoozed,
)
from duetime.console.queue_snapshots import LiveQueue, QueueSnapshot
from duetime.console.sums import DueAhead
from duetime.console.visit import Visit, chosen
from duetime.model.errors import DuetimeError, Forbidden, NoAnswer, VersionConflict
from duetime.model.humanise import size
from duetime.model.job import TOTAL_DAYS, State, Totals
from duetime.model.names import Queue
from duetime.stores.base import StoreInfo

SPANS = ("hour", "day", "month")
HOUR_MS = 3_600_000
MOST_PAUSED = 20
"""So many paused queues are asked for their first overdue job."""
PING_S = 2.0
KEEP_ALIVE_EVERY = 5
MANY_POINTS = 60


@dataclass(frozen=True)
class PoolHealth:
    """`stuck` names the duties of the pool's engine that hang in a round."""

    name: str
    info: StoreInfo | None
    latency_ms: float
    error: str = ""
    stuck: Sequence[str] = field(default_factory=list[str])

    @property
    def is_well(self) -> bool:
        return self.info is not None and not self.info.problems and not self.stuck


async def show_overview(visit: Visit) -> Response:
    live, span = visit.parts.live, chosen(SPANS, visit.query.get("span", ""))
    snapshot, (point, _) = await live.snapshots.for_page(is_partial=visit.is_partial), await live.meters.now()
    sums = live.snapshots.sums(snapshot, *visit.scope, visit.sees)
    everything = not visit.session.namespace
    health = await pool_health(visit)
    processes = await live.processes()
    journal = await live.meters.journal() if everything else None
    ahead, retrying = await live.due.read(visit.sees), await live.retrying.read(visit.sees)
    points = await live.meters.history("hour") if everything else []
    history = points[-60:] if not visit.scope[1] else []
    return await visit.page(
        "overview.html",
        counts=sums.counts,
        queues=sums.queues,
        retrying=retrying,
        counting=not snapshot.is_known,
        point=point,
        sparks={name: [one.rates.get(name, 0) for one in history] for name in ("accepted", "finished", "failed")},
        lateness_target_ms=visit.parts.settings.alert_lateness.total_seconds() * 1000,
        latest=sums.latest,
        busiest=sums.busiest,
        pools=health,
        problems=await read_problems(visit, snapshot, health, processes, journal),
        span=span,
        spans=SPANS,
        charts=history_charts(
            visit, points if span == "hour" else await live.meters.history(span), span, ("rates", "lateness")
        )
        if everything and span != "month"
        else (),
        days=day_bars(visit, await live.totals.days(visit.sees)) if span == "month" else None,
        ahead=_ahead_bars(visit, ahead) if ahead else None,
        ahead_is_whole=ahead.is_whole if ahead else True,
        capacity=point.rates.get("finished", 0) * 3600,
        journal=journal,
        everything=everything,
        # With port 0 the system picked one, which the settings do not know.
        api=f"http://127.0.0.1:{visit.parts.settings.port}" if visit.parts.settings.port else "",
    )


def _ahead_bars(visit: Visit, ahead: DueAhead) -> list[Bar]:
    bars: list[Bar] = []
    for place, value in enumerate(ahead.hours):
        at = datetime.fromtimestamp((ahead.start + place * HOUR_MS) / 1000, visit.zone)
        bars.append(Bar(value, f"{at:%m-%d %H:%M}: {number(value)}", f"{at:%H:%M}" if place % 4 == 0 else ""))
    return bars


async def read_problems(
    visit: Visit,
    snapshot: QueueSnapshot,
    health: Sequence[PoolHealth],
    processes: Sequence[ProcessState],
    journal: JournalLag | None,
) -> list[tuple[str, list[LiveProblem]]]:
    """Everything that is wrong now and that the visitor may see, by kind."""
    parts, whole = visit.parts, not visit.session.namespace
    alerts = [
        one._replace(detail=_room(visit, one.pool, health)) if one.kind == "memory" else one
        for one in from_alerts(parts.registry_copy.list_records(FIRING), snapshot, visit.sees, whole=whole)
    ]
    paused = [line for line in snapshot.lines if visit.sees(line.pool, line.queue.namespace)]
    paused = [line for line in paused if is_overdue_and_paused(line)][:MOST_PAUSED]
    topics = from_topics([one for process in processes for one in process.troubles], alerts, visit.sees)
    covered = {one.key for one in topics}
    found = [one for one in alerts if one.key not in covered] + topics
    found += from_paused(paused, await overdue_ms(visit, paused)) + from_topic_states(
        parts.topics.topics.known(), visit.sees
    )
    if whole:
        down = {one.pool for one in alerts if one.kind == "down"}
        found += [
            LiveProblem("down", f"{one.name}:down", one.name, None, values={"pool": one.name}, detail=_why(one))
            for one in health
            if not one.is_well and not one.stuck and one.name not in down
        ]
        for pool, duties in stuck_duties(processes).items():
            found.append(
                LiveProblem("stuck", f"{pool}:stuck", pool, None, values={"pool": pool}, detail=", ".join(duties))
            )
        if journal is not None and journal.is_behind:
            values = {"backlog": size(journal.backlog), "lag_ms": journal.ship_lag_s * 1000, "count": journal.failing}
            found.append(LiveProblem("journal", "journal", "", None, values=values))
    hidden = snoozed(parts.registry_copy)
    return grouped(one for one in found if one.key not in hidden)


def _room(visit: Visit, pool: str, health: Sequence[PoolHealth]) -> str:
    """How full the store of a pool is now, and what that means."""
    info = next((one.info for one in health if one.name == pool), None)
    if info is None or not info.max_bytes:
        return ""
    return visit.say("trouble.memory_detail", used=size(info.used_bytes), room=size(info.max_bytes))


def _why(health: PoolHealth) -> str:
    return health.error or (", ".join(health.info.problems) if health.info else "")


async def overdue_ms(visit: Visit, lines: Sequence[LiveQueue]) -> dict[tuple[str, Queue], int]:
    """How long the first ready job of each of these paused queues is overdue: stores name no next job for them."""
    found: dict[tuple[str, Queue], int] = {}
    for line in lines:
        page = await visit.parts.pools.engine(line.pool).store.list_jobs(line.queue, State.READY, limit=1)
        for job in page.jobs:
            found[line.pool, line.queue] = max(line.counts.now - job.due_at, 0)
    return found


async def snooze(visit: Visit) -> Response:
    """Hide a problem from this console for an hour. Its alert goes on."""
    key = visit.field("key")[:500]
    _, pool, queue = parse_key(key)
    if queue is not None:
        visit.check_sees(pool, queue.namespace)
    elif visit.session.namespace:
        raise Forbidden(visit.say("error.forbidden"))
    registry, now = visit.parts.pools.registry, time.time()
    for record in await registry.list_records(SNOOZED):
        if msgspec.json.decode(record.value, type=Snooze).until <= now:
            with suppress(VersionConflict):
                await registry.delete(SNOOZED, record.key, if_version=record.version)
    await registry.put(SNOOZED, key, msgspec.json.encode(Snooze(now + SNOOZE_S, visit.session.user)))
    await visit.parts.registry_copy.refresh()
    await visit.log("snooze", key)
    return visit.go(text=visit.say("trouble.snoozed"))


def stuck_duties(processes: Sequence[ProcessState]) -> dict[str, list[str]]:
    """The duties that hang in any process of the server, by pool."""
    found: dict[str, set[str]] = {}
    for process in processes:
        for pool, duties in process.stuck.items():
            found.setdefault(pool, set()).update(duties)
    return {pool: sorted(duties) for pool, duties in found.items()}


async def pool_health(visit: Visit) -> list[PoolHealth]:
    names = [name for name in visit.parts.pools.names if visit.session.pool in ("", name)]
    return list(await asyncio.gather(*(_ping(visit, name) for name in names)))


async def _ping(visit: Visit, name: str) -> PoolHealth:
    began = time.perf_counter()
    try:
        async with asyncio.timeout(PING_S):
            engine = visit.parts.pools.engine(name)
            info = await engine.store.ping()
    except DuetimeError as error:
        return PoolHealth(name, None, 0.0, error.code)
    except TimeoutError:
        return PoolHealth(name, None, 0.0, NoAnswer.code)
    return PoolHealth(name, info, (time.perf_counter() - began) * 1000, stuck=engine.stuck)


def day_bars(visit: Visit, days: Mapping[date, Totals] | None) -> list[tuple[str, list[Bar]]] | None:
    """Bar charts of accepted, acked and dead jobs over the days that stores keep; None while the totals are unknown."""
    if days is None:
        return None
    return [
        (name, [day_bar(day, getattr(days.get(day, Totals()), name)) for day in last_days()])
        for name in ("accepted", "acked", "dead")
    ]


def last_days() -> list[date]:
    """The days that stores keep totals of, today last."""
    today = datetime.now(UTC).date()
    return [today - timedelta(TOTAL_DAYS - 1 - back) for back in range(TOTAL_DAYS)]


def day_bar(day: date, value: int) -> Bar:
    return Bar(value, f"{day.isoformat()}: {number(value)}", f"{day:%m-%d}" if day.toordinal() % 5 == 0 else "")


async def stream(visit: Visit) -> Response:
    """Server-sent events: `tick` whenever an open page should ask for itself again, `away` with the pools (JSON) that
    do not answer whenever that has changed.
    """

    async def events() -> AsyncIterator[bytes]:
        yield b"retry: 2000\nevent: hello\ndata: 1\n\n"
        quiet, last_away = 0, list[str]()
        async for change in visit.parts.live.changes(visit.parts.draining, every_s=visit.rate):
            away = [pool for pool in change.away if visit.session.pool in ("", pool)]
            if away != last_away:
                last_away = away
                yield b"event: away\ndata: " + msgspec.json.encode(away) + b"\n\n"
            quiet = 0 if change.is_new else quiet + 1
            if change.is_new or quiet >= KEEP_ALIVE_EVERY:
                quiet = 0
                yield b"event: tick\ndata: 1\n\n"
        yield b"event: bye\ndata: 1\n\n"

    return StreamingResponse(events(), media_type="text/event-stream", headers={"x-accel-buffering": "no"})
