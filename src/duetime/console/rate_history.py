"""Rates and lateness of the last hour and day, kept in the registry minute by minute, so that they survive restarts.

Each server writes what it counted itself, one record per hour, and deletes records that are older than a day. A page
adds up what all servers of the deployment wrote. While no server ran nothing was counted, and the chart has a gap.
"""

import logging
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from duetime.engine.registry_copy import RegistryCopy
from duetime.metrics.recorder import LATENESS_S, RUN_S
from duetime.model.errors import DuetimeError, VersionConflict
from duetime.stores.registry import Record, Registry

log = logging.getLogger("duetime.console")

KIND = "console-rates"
KEPT_S = 25 * 3600
OVER = 1.01
"""An answer above the highest edge is this many times that edge."""
LIMITS = {edges[-1] * OVER: edges[-1] for edges in (LATENESS_S, RUN_S)}
"""The answers that only say: more than this."""
UNSAVED = 120
"""How many minutes wait in memory while the registry cannot be written."""


class MeterGain(msgspec.Struct, array_like=True, frozen=True):
    """What one server counted in the `seconds` before `at` (epoch seconds).

    `lateness` and `run` say how many jobs were how late and ran how long: the upper edge of a bucket in seconds, and
    the jobs in it. `backlog` are the jobs that were due and waited at the end, where that was counted.
    """

    at: float
    seconds: float
    counts: Mapping[str, float]
    lateness: Sequence[tuple[float, float]]
    run: Sequence[tuple[float, float]] = ()
    backlog: int | None = None


class RatePoint(NamedTuple):
    """Jobs per second, seconds of lateness (None where nothing was delivered) and of run time (None where nothing
    ended) in the time that ends with `at`.
    """

    at: float
    rates: Mapping[str, float]
    p50: float | None
    p99: float | None
    run_p50: float | None = None
    run_p99: float | None = None
    backlog: int | None = None


def quantile(spread: Sequence[tuple[float, float]], share: float, edges: Sequence[float] = LATENESS_S) -> float | None:
    """The value below which that share of the jobs lies, as well as buckets can tell; None without jobs.

    `spread` has the upper edge of each bucket and the jobs in it. Within a bucket the jobs are taken to be spread
    evenly over the logarithm. Above the highest edge nothing is known: the answer is then a little more than that edge.
    """
    total = sum(count for _, count in spread)
    if total <= 0:
        return None
    wanted, reached = total * share, 0.0
    for edge, count in sorted(spread):
        if reached + count >= wanted * 0.999_999:  # counts that were divided over several points do not add up exactly
            if edge > edges[-1]:
                return edges[-1] * OVER
            place = bisect_left(edges, edge)
            low = edges[place - 1] if place else edge / 4
            return low * (edge / low) ** min(max((wanted - reached) / count, 0.0), 1.0)
        reached += count
    return edges[-1] * OVER


def rate_points(gains: Mapping[str, Sequence[MeterGain]], *, since: float, width_s: float) -> list[RatePoint]:
    """One point per `width_s`, from the gains of each server. A gain that covers several points is divided evenly."""
    slots: dict[int, dict[str, list[MeterGain]]] = defaultdict(lambda: defaultdict(list))
    for server, found in gains.items():
        for gain in found:
            parts = max(1, round(gain.seconds / width_s))
            part = gain if parts == 1 else _divided(gain, parts)
            for number in range(parts):
                middle = gain.at - gain.seconds + (number + 0.5) * part.seconds
                if middle >= since:
                    slots[int(middle // width_s)][server].append(part)
    return [_point((slot + 1) * width_s, by_server) for slot, by_server in sorted(slots.items())]


def _divided(gain: MeterGain, parts: int) -> MeterGain:
    return MeterGain(
        gain.at,
        gain.seconds / parts,
        {name: count / parts for name, count in gain.counts.items()},
        [(edge, count / parts) for edge, count in gain.lateness],
        [(edge, count / parts) for edge, count in gain.run],
        gain.backlog,
    )


def _point(at: float, by_server: Mapping[str, Sequence[MeterGain]]) -> RatePoint:
    rates: dict[str, float] = defaultdict(float)
    whole = [add_up(gains) for gains in by_server.values()]
    for gain in whole:
        for name, count in gain.counts.items():
            rates[name] += count / max(gain.seconds, 0.001)
    late, run = add_spreads(gain.lateness for gain in whole), add_spreads(gain.run for gain in whole)
    backlogs = [gain.backlog for gain in whole if gain.backlog is not None]
    return RatePoint(
        at,
        dict(rates),
        quantile(late, 0.5),
        quantile(late, 0.99),
        quantile(run, 0.5, RUN_S),
        quantile(run, 0.99, RUN_S),
        max(backlogs, default=None),  # all servers count the same jobs
    )


def add_up(gains: Sequence[MeterGain]) -> MeterGain:
    """The gains of one server that follow each other as one; the backlog is the last that is known."""
    if len(gains) == 1:
        return gains[0]
    counts: dict[str, float] = defaultdict(float)
    for gain in gains:
        for name, count in gain.counts.items():
            counts[name] += count
    return MeterGain(
        gains[-1].at,
        sum(gain.seconds for gain in gains),
        dict(counts),
        add_spreads(gain.lateness for gain in gains),
        add_spreads(gain.run for gain in gains),
        next((gain.backlog for gain in reversed(gains) if gain.backlog is not None), None),
    )


def add_spreads(spreads: Iterable[Sequence[tuple[float, float]]]) -> list[tuple[float, float]]:
    sums: dict[float, float] = defaultdict(float)
    for spread in spreads:
        for edge, count in spread:
            sums[edge] += count
    return list(sums.items())


class HourRecords:
    """One record of the registry per hour and server; `server` names this one, also after a restart. A process without
    a name writes none.
    """

    def __init__(
        self, registry: Callable[[], Registry], registry_copy: RegistryCopy, server: str, *, kind: str, kept_s: int
    ) -> None:
        self.server = server
        self._registry = registry
        self._registry_copy = registry_copy
        self._kind = kind
        self._kept_s = kept_s

    def of_kind(self, kind: str, kept_s: int) -> "HourRecords":
        """Other records of the same server."""
        return HourRecords(self._registry, self._registry_copy, self.server, kind=kind, kept_s=kept_s)

    def read(self, since: float) -> list[tuple[str, Record]]:
        """The records that end after `since`, each with its server, as this process's copy of the registry has them."""
        found = [(record.key.partition("/"), record) for record in self._registry_copy.list_records(self._kind)]
        return [(server, record) for (hour, _, server), record in found if (int(hour) + 1) * 3600 > since]

    async def append(self, at: float, change: Callable[[bytes | None], bytes]) -> None:
        """Change this server's record of the hour of `at`, and delete records that are too old."""
        if not self.server:
            return
        registry, key = self._registry(), f"{int(at // 3600):07d}/{self.server}"
        while True:
            record = await registry.get(self._kind, key)
            value = change(record.value if record else None)
            try:
                await registry.put(self._kind, key, value, if_version=record.version if record else 0)
            except VersionConflict:
                continue
            break
        for old in self._registry_copy.list_records(self._kind):
            if (int(old.key.partition("/")[0]) + 1) * 3600 < time.time() - self._kept_s:
                await registry.delete(self._kind, old.key)

    async def replace(self, record: Record, value: bytes) -> None:
        """Write a record anew unless it has been changed meanwhile."""
        if not self.server:
            return
        with suppress(VersionConflict):
            await self._registry().put(self._kind, record.key, value, if_version=record.version)


class RateHistory:
    """`server` names this server among those of the deployment, also after a restart; empty: it writes no history."""

    def __init__(self, registry: Callable[[], Registry], registry_copy: RegistryCopy, server: str) -> None:
        self.server = server
        self.records = HourRecords(registry, registry_copy, server, kind=KIND, kept_s=KEPT_S)
        self._unsaved: list[MeterGain] = []

    def read(self, since: float) -> dict[str, list[MeterGain]]:
        """The gains of each server from `since` on, oldest first, as this process's copy of the registry has them."""
        found: dict[str, list[MeterGain]] = {}
        for server, record in self.records.read(since):
            found.setdefault(server, []).extend(gain for gain in _decode(record.value) if gain.at > since)
        return found

    async def write(self, gain: MeterGain) -> None:
        """Keep a gain. While the registry cannot be written, gains wait in memory."""
        self._unsaved = [*self._unsaved, gain][-UNSAVED:]
        try:
            while self._unsaved:
                first = self._unsaved[0]
                await self.records.append(first.at, lambda old, one=first: msgspec.json.encode([*_decode(old), one]))
                del self._unsaved[0]
        except DuetimeError as error:
            log.debug("console_rates_not_kept", extra={"error": error.message})


def _decode(value: bytes | None) -> list[MeterGain]:
    return msgspec.json.decode(value, type=list[MeterGain]) if value else []
