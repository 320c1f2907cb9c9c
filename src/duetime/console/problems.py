"""What is wrong now, as lines that can be acted on: built from kinds and current numbers, not from stored sentences.

Alerts say what the watchdog found and since when; the numbers come from the last snapshot of the stores. Queues that
are paused while jobs are overdue, topics whose calls fail, and open circuit breakers are problems, too. A problem that
somebody snoozed is not shown for a while; its alert goes on.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct

from duetime.alerts.problems import FIRING, Firing
from duetime.callbacks.failing_topics import PREFIX, TopicTrouble
from duetime.callbacks.topic_registry import TopicAddress
from duetime.console.queue_snapshots import LiveQueue, QueueSnapshot
from duetime.engine.registry_copy import RegistryCopy
from duetime.model.names import Queue
from duetime.model.topic import Status, Topic
from duetime.stores.registry import Record

SNOOZED = "console-snooze"
SNOOZE_S = 3600
OF_QUEUES = ("late", "dead", "damaged", "paused", "halted", "offline")


class Snooze(Struct, frozen=True):
    until: float
    user: str


class LiveProblem(NamedTuple):
    """`kind` names the sentence, `values` fill it: numbers and names, times in milliseconds under `*_ms`.

    `since` is epoch milliseconds, 0 if unknown. `detail` is what a program reported, in its own words.
    """

    kind: str
    key: str
    pool: str
    queue: Queue | None
    since: int = 0
    values: Mapping[str, object] = {}
    detail: str = ""
    is_warning: bool = False


def parse_key(key: str) -> tuple[str, str, Queue | None]:
    """Kind, pool and queue of the key of an alert or another problem. The kind is "other" for a key of a form that is
    not known here.
    """
    if key.startswith(PREFIX):
        address = TopicAddress.of_key(key.removeprefix(PREFIX))
        return "callbacks", address.pool, address.queue
    pool, _, rest = key.partition(":")
    what, _, name = rest.partition(":")
    if what in OF_QUEUES and "/" in name:
        return what, pool, Queue(*name.split("/", 1))
    if what == "down" and name:
        return "part_down", pool, None
    return (what, pool, None) if what in ("memory", "down") else ("other", "", None)


def is_overdue_and_paused(line: LiveQueue) -> bool:
    """A store names no next due time for a paused queue."""
    return line.head is None and line.counts.ready > 0


def snoozed(registry_copy: RegistryCopy) -> set[str]:
    now = time.time()
    return {
        record.key
        for record in registry_copy.list_records(SNOOZED)
        if msgspec.json.decode(record.value, type=Snooze).until > now
    }


def quick_count(
    registry_copy: RegistryCopy,
    snapshot: QueueSnapshot,
    topics: Mapping[TopicAddress, Topic],
    troubles: Iterable[TopicTrouble],
    sees: Callable[[str, str], bool],
    *,
    whole: bool,
) -> int:
    """How many problems there are, as far as this process knows without asking anybody."""
    keys: set[str] = set()
    for record in registry_copy.list_records(FIRING):
        _, pool, queue = parse_key(record.key)
        if sees(pool, queue.namespace) if queue else whole:
            keys.add(record.key)
    seen = (line for line in snapshot.lines if sees(line.pool, line.queue.namespace))
    keys |= {paused_key(line) for line in seen if is_overdue_and_paused(line)}
    keys |= {one.key for one in from_topic_states(topics, sees)}
    keys |= {one.key for one in from_topics(troubles, (), sees)}
    return len(keys - snoozed(registry_copy))


def paused_key(line: LiveQueue) -> str:
    return f"{line.pool}:paused:{line.queue}"


def from_alerts(
    records: Sequence[Record], snapshot: QueueSnapshot, sees: Callable[[str, str], bool], *, whole: bool
) -> list[LiveProblem]:
    """The problems that alerts were raised about, with the numbers of now; a paused queue is not late here."""
    names = {queue.name for _, _, queue in (parse_key(record.key) for record in records) if queue}
    lines = {(line.pool, line.queue): line for line in snapshot.lines if line.queue.name in names}
    found: list[LiveProblem] = []
    for record in records:
        firing = msgspec.json.decode(record.value, type=Firing)
        kind, pool, queue = parse_key(record.key)
        if not (sees(pool, queue.namespace) if queue else whole):
            continue
        line = lines.get((pool, queue)) if queue else None
        values: dict[str, object] = {"pool": pool}
        if line is not None:
            values |= {"late_ms": line.late_ms, "count": line.counts.dead, "ready": line.counts.ready}
            if kind == "late" and not line.late_ms:
                continue  # it is over, or the queue is paused, which another line says
        if kind == "damaged" and line is not None:
            values["count"] = line.counts.damaged
        detail = firing.problem.text if kind in ("other", "down", "part_down") else ""
        if kind == "other":
            values["title"] = firing.problem.title
        found.append(LiveProblem(kind, record.key, pool, queue, int(firing.since * 1000), values, detail))
    return found


def from_paused(lines: Sequence[LiveQueue], late_ms: Mapping[tuple[str, Queue], int]) -> list[LiveProblem]:
    """`late_ms` is how long the first job of each queue is overdue, where that is known."""
    return [
        LiveProblem(
            "paused",
            paused_key(line),
            line.pool,
            line.queue,
            values={"count": line.counts.ready, "late_ms": late_ms.get((line.pool, line.queue), 0)},
            is_warning=True,
        )
        for line in lines
    ]


def from_topics(
    troubles: Iterable[TopicTrouble], raised: Iterable[LiveProblem], sees: Callable[[str, str], bool]
) -> list[LiveProblem]:
    """Topics whose calls fail or are not made; this problem says more than an alert of the topic, and replaces it."""
    alerts = {one.key: one for one in raised if one.kind == "callbacks"}
    found: dict[str, LiveProblem] = {}
    for trouble in troubles:
        address = TopicAddress.of_key(trouble.topic)
        key = PREFIX + trouble.topic
        if not sees(address.pool, address.queue.namespace) or (not trouble.pause_s and key not in alerts):
            continue
        since = alerts[key].since if key in alerts else int(trouble.since * 1000)
        values = {"count": trouble.failures, "pause_ms": trouble.pause_s * 1000}
        kind = "breaker" if trouble.pause_s else "callbacks"
        known = found.get(key)
        if known is None or int(str(known.values["count"])) < trouble.failures:
            found[key] = LiveProblem(kind, key, address.pool, address.queue, since, values, trouble.why)
    return list(found.values())


def from_topic_states(topics: Mapping[TopicAddress, Topic], sees: Callable[[str, str], bool]) -> list[LiveProblem]:
    """Topics that deliver nothing, or refuse new jobs, until somebody puts them online."""
    found: list[LiveProblem] = []
    for one, topic in topics.items():
        kind = "halted" if topic.halted else "offline"
        if (topic.halted or topic.status is Status.OFFLINE) and sees(one.pool, one.queue.namespace):
            key = f"{one.pool}:{kind}:{one.queue}"
            found.append(LiveProblem(kind, key, one.pool, one.queue, detail=topic.halted, is_warning=kind == "offline"))
    return found


def grouped(problems: Iterable[LiveProblem]) -> list[tuple[str, list[LiveProblem]]]:
    """By kind, in the order of weight; within a kind the oldest first."""
    order = (
        "down",
        "part_down",
        "stuck",
        "journal",
        "memory",
        "damaged",
        "halted",
        "breaker",
        "callbacks",
        "dead",
        "late",
        "paused",
        "offline",
    )
    kinds: dict[str, list[LiveProblem]] = {}
    for one in sorted(problems, key=lambda one: one.since or float("inf")):
        kinds.setdefault(one.kind, []).append(one)
    return sorted(kinds.items(), key=lambda one: order.index(one[0]) if one[0] in order else len(order))
