"""What each queue and each task did: minute by minute over the last hour, and over a day and a week from the registry.

The last hour is in the memory of each process. Every ten minutes one process of the server keeps the queues that were
busiest in the registry: for a day in steps of ten minutes, for a week in steps of an hour. With KEPT_QUEUES busy queues
all the time that is about 3 MB per server.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from duetime.console.rate_history import HourRecords, MeterGain, RatePoint, add_up, rate_points
from duetime.metrics.meters import Labels
from duetime.model.errors import DuetimeError
from duetime.stores.registry import Record

log = logging.getLogger("duetime.console")

KIND = "console-queues"
TASKS_KIND = "console-tasks"
KEPT_S = 8 * 86_400
FINE_S = 25 * 3600
"""Records that are older than this keep one gain per queue and hour."""
KEPT_QUEUES = 100
MINUTES = 60
STEPS = 10
"""How many gains of memory are kept in the registry as one."""
SPANS: Mapping[str, tuple[int, int]] = {"hour": (3600, 60), "day": (86_400, 600), "week": (604_800, 3600)}
"""How long each span is, and the width of its points, in seconds."""

COVERED = ""
"""Stands for a queue without jobs in a record: a queue that is missing where this is there gained nothing."""


class Minute(NamedTuple):
    """The queues (or tasks) that moved, or had jobs that waited, in the `seconds` before `at`."""

    at: float
    seconds: float
    gains: Mapping[Labels, MeterGain]

    def gain(self, labels: Labels) -> MeterGain:
        return self.gains.get(labels) or MeterGain(self.at, self.seconds, {}, (), backlog=0)


Kept = Sequence[tuple[str, Record]]
"""Records of the registry, each with the server that wrote it."""


class QueueHistory:
    def __init__(self, records: HourRecords) -> None:
        self._records = records
        self._minutes: deque[Minute] = deque(maxlen=MINUTES)
        self._unsaved: deque[Minute] = deque(maxlen=MINUTES)
        self._coarse: set[str] = set()

    def remember(self, minute: Minute) -> None:
        self._minutes.append(minute)

    def finished(self, labels: Labels) -> list[float]:
        """What was finished in each minute of memory."""
        return [minute.gain(labels).counts.get("finished", 0) for minute in self._minutes]

    def backlog_before(self, labels: Labels) -> int | None:
        """How many jobs were due in the first minute of memory, at most an hour ago; None if there is none yet."""
        return self._minutes[0].gain(labels).backlog if self._minutes else None

    async def points(self, labels: Labels, span: str) -> list[RatePoint]:
        """The points of a queue: what this process knows, before that and of other servers what was kept. No points if
        nothing happened and nothing waited. Read in a thread: a week may be 3 MB.
        """
        since = time.time() - SPANS[span][0]
        return await asyncio.to_thread(self._points, labels, span, since, self._records.read(since), [*self._minutes])

    def _points(
        self, labels: Labels, span: str, since: float, kept: Kept, minutes: Sequence[Minute]
    ) -> list[RatePoint]:
        begin = minutes[0].at - minutes[0].seconds if minutes else float("inf")
        found: dict[str, list[MeterGain]] = {}
        for server, record in kept:
            known = msgspec.json.decode(record.value, type=dict[str, msgspec.Raw])
            gains, covered = (_read(known.get(key)) for key in ("/".join(labels), COVERED))
            until = begin if server == self._records.server else float("inf")
            filled = _filled(gains, covered)
            found.setdefault(server, []).extend(gain for gain in filled if since < gain.at <= until)
        found.setdefault(self._records.server, []).extend(
            minute.gain(labels) for minute in minutes if minute.at > since
        )
        points = rate_points(found, since=since, width_s=SPANS[span][1])
        return points if any(one.backlog or any(one.rates.values()) for one in points) else []

    async def sums(self, span: str) -> dict[tuple[str, str, str], MeterGain]:
        """What each of them did in the span as one gain, from what `points` reads."""
        since = time.time() - SPANS[span][0]
        return await asyncio.to_thread(self._sums, since, self._records.read(since), [*self._minutes])

    def _sums(self, since: float, kept: Kept, minutes: Sequence[Minute]) -> dict[tuple[str, str, str], MeterGain]:
        begin = minutes[0].at - minutes[0].seconds if minutes else float("inf")
        found: dict[tuple[str, str, str], list[MeterGain]] = {}
        for server, record in kept:
            until = begin if server == self._records.server else float("inf")
            for key, gains in _decode(record.value).items():
                known = [gain for gain in gains if since < gain.at <= until]
                if known and key != COVERED:
                    pool, namespace, name = key.split("/", 2)
                    found.setdefault((pool, namespace, name), []).extend(known)
        for minute in minutes:
            for (pool, namespace, name), gain in minute.gains.items():
                if gain.at > since:
                    found.setdefault((pool, namespace, name), []).append(gain)
        return {labels: add_up(gains) for labels, gains in found.items()}

    async def write(self, minute: Minute) -> None:
        """Keep STEPS minutes together. While the registry cannot be written, they wait in memory."""
        self._unsaved.append(minute)
        if len(self._unsaved) < STEPS:
            return
        sums = _busiest(self._unsaved)
        try:
            await self._records.append(minute.at, lambda old: _with(old, sums))
            self._unsaved.clear()
            for _, record in self._records.read(0):
                if record.key not in self._coarse and (int(record.key[:7]) + 1) * 3600 < time.time() - FINE_S:
                    await self._records.replace(record, coarser(record.value))
                    self._coarse.add(record.key)
        except DuetimeError as error:
            log.debug("console_queues_not_kept", extra={"error": error.message})


def _busiest(minutes: Sequence[Minute]) -> dict[str, MeterGain]:
    """What the queues with the most jobs gained in all of these minutes."""
    found: dict[Labels, list[MeterGain]] = {}
    for minute in minutes:
        for labels, gain in minute.gains.items():
            found.setdefault(labels, []).append(gain)
    at, seconds = minutes[-1].at, sum(minute.seconds for minute in minutes)
    sums = {labels: replace(add_up(gains), at=at, seconds=seconds) for labels, gains in found.items()}
    order = sorted(sums, key=lambda labels: (-sum(sums[labels].counts.values()), -(sums[labels].backlog or 0)))
    kept = {"/".join(labels): sums[labels] for labels in order[:KEPT_QUEUES]}
    return kept if len(order) > KEPT_QUEUES else {**kept, COVERED: MeterGain(at, seconds, {}, (), backlog=0)}


def _with(old: bytes | None, sums: Mapping[str, MeterGain]) -> bytes:
    known = _decode(old) if old else dict[str, list[MeterGain]]()
    return msgspec.json.encode({**known, **{key: [*known.get(key, ()), gain] for key, gain in sums.items()}})


def coarser(value: bytes) -> bytes:
    """A record with one gain for each queue and the whole hour."""
    known = _decode(value)
    covered = known.get(COVERED, [])
    return msgspec.json.encode({key: [add_up(_filled(gains, covered))] for key, gains in known.items()})


def _filled(gains: Sequence[MeterGain], covered: Sequence[MeterGain]) -> list[MeterGain]:
    times = {gain.at for gain in gains}
    return sorted([*gains, *(one for one in covered if one.at not in times)], key=lambda one: one.at)


def _read(kept: msgspec.Raw | None) -> list[MeterGain]:
    return msgspec.json.decode(kept, type=list[MeterGain]) if kept is not None else []


def _decode(value: bytes) -> dict[str, list[MeterGain]]:
    return msgspec.json.decode(value, type=dict[str, list[MeterGain]])
