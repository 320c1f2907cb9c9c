"""Rates and lateness of the last hour and day, kept in the registry minute by minute, so that they survive restarts.

Each server writes what it counted itself, one record per hour, and deletes records that are older than a day. A page
adds up what all servers of the deployment wrote. While no server ran nothing was counted, and the chart has a gap.
"""

import logging
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from duetime.engine.registry_copy import RegistryCopy
from duetime.metrics.recorder import LATENESS_S
from duetime.model.errors import DuetimeError, VersionConflict
from duetime.stores.registry import Registry

log = logging.getLogger("duetime.console")

KIND = "console-rates"
KEPT_S = 25 * 3600
OVER = 1.01
"""An answer above the highest edge is this many times that edge."""
UNSAVED = 120
"""How many minutes wait in memory while the registry cannot be written."""


class MeterGain(msgspec.Struct, array_like=True, frozen=True):
    """What one server counted in the `seconds` before `at` (epoch seconds).

    `lateness` has how many jobs were how late: the upper edge of a bucket in seconds, and the jobs in it.
    """

    at: float
    seconds: float
    counts: Mapping[str, float]
    lateness: Sequence[tuple[float, float]]


class RatePoint(NamedTuple):
    """Jobs per second and seconds of lateness (None where nothing was delivered) in the time that ends with `at`."""

    at: float
    rates: Mapping[str, float]
    p50: float | None
    p99: float | None


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
            part = MeterGain(
                gain.at,
                gain.seconds / parts,
                {name: count / parts for name, count in gain.counts.items()},
                [(edge, count / parts) for edge, count in gain.lateness],
            )
            for number in range(parts):
                middle = gain.at - gain.seconds + (number + 0.5) * part.seconds
                if middle >= since:
                    slots[int(middle // width_s)][server].append(part)
    return [_point((slot + 1) * width_s, by_server) for slot, by_server in sorted(slots.items())]


def _point(at: float, by_server: Mapping[str, Sequence[MeterGain]]) -> RatePoint:
    rates: dict[str, float] = defaultdict(float)
    lateness: dict[float, float] = defaultdict(float)
    for gains in by_server.values():
        covered = max(sum(gain.seconds for gain in gains), 0.001)
        for gain in gains:
            for name, count in gain.counts.items():
                rates[name] += count / covered
            for edge, count in gain.lateness:
                lateness[edge] += count
    late = list(lateness.items())
    return RatePoint(at, dict(rates), quantile(late, 0.5), quantile(late, 0.99))


class RateHistory:
    """`server` names this server among those of the deployment, also after a restart."""

    def __init__(self, registry: Callable[[], Registry], registry_copy: RegistryCopy, server: str) -> None:
        self.server = server
        self._registry = registry
        self._registry_copy = registry_copy
        self._unsaved: list[MeterGain] = []

    def read(self, since: float) -> dict[str, list[MeterGain]]:
        """The gains of each server from `since` on, oldest first, as this process's copy of the registry has them."""
        found: dict[str, list[MeterGain]] = {}
        for record in self._registry_copy.list_records(KIND):
            hour, _, server = record.key.partition("/")
            if (int(hour) + 1) * 3600 > since:
                gains = found.setdefault(server, [])
                gains += [gain for gain in _decode(record.value) if gain.at > since]
        return found

    async def write(self, gain: MeterGain) -> None:
        """Keep a gain. While the registry cannot be written, gains wait in memory."""
        self._unsaved = [*self._unsaved, gain][-UNSAVED:]
        try:
            while self._unsaved:
                await self._append(self._unsaved[0])
                del self._unsaved[0]
            await self._delete_old()
        except DuetimeError as error:
            log.debug("console_rates_not_kept", extra={"error": error.message})

    async def _append(self, gain: MeterGain) -> None:
        registry, key = self._registry(), f"{int(gain.at // 3600):07d}/{self.server}"
        while True:
            record = await registry.get(KIND, key)
            value = msgspec.json.encode([*(_decode(record.value) if record else ()), gain])
            try:
                await registry.put(KIND, key, value, if_version=record.version if record else 0)
            except VersionConflict:
                continue
            return

    async def _delete_old(self) -> None:
        for record in self._registry_copy.list_records(KIND):
            if (int(record.key.partition("/")[0]) + 1) * 3600 < time.time() - KEPT_S:
                await self._registry().delete(KIND, record.key)


def _decode(value: bytes) -> list[MeterGain]:
    return msgspec.json.decode(value, type=list[MeterGain])
