"""The first page: jobs by state, how fast they come and go, how late they are, and what is wrong now."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec
from starlette.responses import Response, StreamingResponse

from duetime.alerts.problems import FIRING, Firing
from duetime.console.charts import Bar
from duetime.console.formats import number
from duetime.console.live import LiveFigures, ProcessState
from duetime.console.rate_history import RatePoint
from duetime.console.visit import Visit, chosen
from duetime.model.errors import DuetimeError, NoAnswer
from duetime.model.job import TOTAL_DAYS, Totals
from duetime.stores.base import StoreInfo

SPANS = ("hour", "day", "month")
PING_S = 2.0
KEEP_ALIVE_EVERY = 5


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
    look, (point, _) = await live.looks.look_for_page(is_partial=visit.is_partial), await live.meters.now()
    sums = live.looks.sums(look, visit.session.pool, visit.session.namespace, visit.session.sees)
    everything = not visit.session.namespace
    return visit.page(
        "overview.html",
        counts=sums.counts,
        queues=sums.queues,
        counting=not look.is_known,
        point=point,
        lateness_target_ms=visit.parts.settings.alert_lateness.total_seconds() * 1000,
        latest=sums.latest,
        busiest=sums.busiest,
        pools=await pool_health(visit),
        problems=firing(visit) if everything else [],
        span=span,
        spans=SPANS,
        chart=_chart(visit, span, live) if everything and span != "month" else None,
        days=day_bars(visit, await live.totals.days(visit.session.sees)) if span == "month" else None,
        journal=await live.meters.journal() if everything else None,
        stuck=stuck_duties(await live.processes()) if everything else {},
        everything=everything,
        # With port 0 the system picked one, which the settings do not know.
        api=f"http://127.0.0.1:{visit.parts.settings.port}" if visit.parts.settings.port else "",
    )


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


def firing(visit: Visit) -> list[Firing]:
    """The problems that alerts were raised about and that are not over."""
    records = visit.parts.registry_copy.list_records(FIRING)
    return [msgspec.json.decode(record.value, type=Firing) for record in records]


def _chart(visit: Visit, span: str, live: LiveFigures) -> dict[str, Any]:
    """What the page's script draws with uPlot: columns of numbers, the first of which is the time."""
    points: Sequence[RatePoint] = live.meters.history(span)
    names = ("accepted", "delivered", "failed")
    return {
        "rates": {
            "labels": [visit.say(f"overview.{name}") for name in names],
            "data": [
                [int(one.at) for one in points],
                *[[round(one.rates.get(name, 0), 3) for one in points] for name in names],
            ],
        },
        "lateness": {
            "labels": [visit.say("overview.p50"), visit.say("overview.p99")],
            "data": [
                [int(one.at) for one in points],
                [None if one.p50 is None else one.p50 * 1000 for one in points],
                [None if one.p99 is None else one.p99 * 1000 for one in points],
            ],
        },
        "count": len(points),
    }


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
        quiet, told = 0, list[str]()
        async for change in visit.parts.live.changes(visit.parts.draining):
            away = [pool for pool in change.away if visit.session.pool in ("", pool)]
            if away != told:
                told = away
                yield b"event: away\ndata: " + msgspec.json.encode(away) + b"\n\n"
            quiet = 0 if change.is_new else quiet + 1
            if change.is_new or quiet >= KEEP_ALIVE_EVERY:
                quiet = 0
                yield b"event: tick\ndata: 1\n\n"
        yield b"event: bye\ndata: 1\n\n"

    return StreamingResponse(events(), media_type="text/event-stream", headers={"x-accel-buffering": "no"})
