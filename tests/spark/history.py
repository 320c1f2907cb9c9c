"""A journal made by hand: nodes that write real segments, and the stories that jobs go through.

`Node` numbers and seals like an engine does; `Story` tells the entries of one job, spread over the nodes in any order.
`a_day` is a day of ordinary history: every fate that a job can have, retries, a purge, several nodes, several batches.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from duetime.journal.events import Entry, body_fields, write_line
from duetime.journal.segments import open_name, sealed_name
from duetime.model.job import Event, NewJob, Priority
from duetime.model.names import Queue

HOUR_MS = 3_600_000
NAMESPACE = "shop"
TRIES = 5


class Node:
    """One process's folder of the journal. Segments are sealed after `per_segment` entries and at the end."""

    def __init__(self, journal: Path, name: str, *, per_segment: int = 100) -> None:
        self.folder = journal / name
        self.folder.mkdir(parents=True)
        self.name = name
        self.per_segment = per_segment
        self.seq = 0
        self._lines: list[bytes] = []

    def write(self, event: Event, ts: int, **fields: Any) -> Entry:
        self.seq += 1
        entry = Entry(ts=ts, wrote_at=ts + 1, node=self.name, seq=self.seq, event=event, **fields)
        self._lines.append(write_line(entry))
        if len(self._lines) == self.per_segment:
            self.seal()
        return entry

    def seal(self) -> Path | None:
        if not self._lines:
            return None
        first = self.seq - len(self._lines) + 1
        path = self.folder / sealed_name(first, self.seq)
        path.write_bytes(b"".join(self._lines))
        self._lines = []
        return path

    def leave_open(self, torn: bytes = b"") -> Path:
        """What has not been sealed, as a process that still writes leaves it."""
        path = self.folder / open_name(self.seq - len(self._lines) + 1)
        path.write_bytes(b"".join(self._lines) + torn)
        self._lines = []
        return path

    def close(self, ts: int) -> None:
        self.write(Event.CLOSED, ts)
        self.seal()


@dataclass
class Story:
    """One job and what happens to it. Each step returns the story, so that they can be chained."""

    write: Callable[..., Any]
    id: str
    born: int
    due_at: int
    queue: str = "mail"
    batch: str = ""
    ttl: int = 0
    tries: int = TRIES
    attempt: int = 0

    @property
    def body(self) -> bytes:
        return f"body of {self.id}".encode()

    def step(self, event: Event, ts: int, **fields: Any) -> "Story":
        named = {"namespace": NAMESPACE, "queue": self.queue, "id": self.id, "born": self.born, "attempt": self.attempt}
        self.write(event, ts, **{**named, **fields})
        return self

    def accepted(self, event: Event = Event.ACCEPTED, **fields: Any) -> "Story":
        known: dict[str, Any] = {
            "due_at": self.due_at,
            "priority": Priority.NORMAL,
            "ttl": self.ttl,
            "tries": self.tries,
            "batch": self.batch,
            **body_fields(self.body),
        }
        return self.step(event, self.born, **known | fields)

    def delivered(self, after: int = 5, *, due_at: int | None = None) -> "Story":
        self.attempt += 1
        due = self.due_at if due_at is None else due_at
        return self.step(Event.DELIVERED, due + after, due_at=due)

    def released(self, delay: int = 1000) -> "Story":
        """Half a second after it was due."""
        ts = self.due_at + 500
        self.due_at = ts + delay
        return self.step(Event.RELEASED, ts, due_at=self.due_at)

    def ended(self, event: Event, after: int = 100, **fields: Any) -> "Story":
        return self.step(event, self.due_at + after, **fields)

    def as_job(self) -> NewJob:
        """For a store that still holds it."""
        return NewJob(
            self.id,
            self.body,
            due_at=self.due_at,
            tries=self.tries,
            ttl_ms=self.ttl,
            born=self.born,
            attempt=self.attempt,
        )


@dataclass
class Day:
    """A journal, and what the store holds after it, by queue."""

    journal: Path
    start: int
    nodes: list[Node]
    held: dict[Queue, list[NewJob]] = field(default_factory=dict[Queue, list[NewJob]])
    stories: int = 0
    chance: random.Random = field(default_factory=lambda: random.Random(8))

    @property
    def end(self) -> int:
        return self.start + 24 * HOUR_MS

    def write(self, event: Event, ts: int, **fields: Any) -> Entry:
        """By any of the nodes."""
        return self.chance.choice(self.nodes).write(event, ts, **fields)

    def story(self, job_id: str, **fields: Any) -> Story:
        self.stories += 1
        born = self.start + HOUR_MS + self.stories * 1000
        return Story(self.write, job_id, born, fields.pop("due_at", born + 60_000), **fields)

    def hold(self, story: Story) -> None:
        self.held.setdefault(Queue(NAMESPACE, story.queue), []).append(story.as_job())


def _acked(day: Day, story: Story) -> None:
    story.accepted().delivered().ended(Event.ACKED)


def _retried(day: Day, story: Story) -> None:
    story.accepted().delivered().released().delivered().ended(Event.ACKED)


def _lapsed(day: Day, story: Story) -> None:
    story.accepted().delivered()
    story.due_at += 30_000
    story.step(Event.LEASE_EXPIRED, story.due_at, due_at=story.due_at).delivered().ended(Event.ACKED)


def _given_back(day: Day, story: Story) -> None:
    story.accepted().delivered().step(Event.GIVEN_BACK, story.due_at + 9, due_at=story.due_at)
    story.delivered(after=20).ended(Event.ACKED)


def _cancelled(day: Day, story: Story) -> None:
    story.accepted().step(Event.CANCELLED, story.born + 50)


def _expired(day: Day, story: Story) -> None:
    story.ttl = 90_000
    story.accepted().step(Event.EXPIRED, story.born + 90_001)


def _deleted(day: Day, story: Story) -> None:
    story.accepted().delivered().ended(Event.DEAD, reason="killed").ended(Event.DELETED, after=900)


def _respawned(day: Day, story: Story) -> None:
    story.accepted().delivered().ended(Event.DEAD, reason="tries")
    story.due_at += 5000
    story.step(Event.RESPAWNED, story.due_at, due_at=story.due_at).delivered().ended(Event.ACKED)


def _replaced(day: Day, story: Story) -> None:
    story.accepted()
    was, story.born = story.born, story.born + 10
    story.due_at += 10
    story.accepted(Event.REPLACED, was=was).delivered().ended(Event.ACKED)


def _rescheduled(day: Day, story: Story) -> None:
    story.accepted()
    story.due_at -= 30_000
    story.step(Event.RESCHEDULED, story.born + 20, due_at=story.due_at).delivered().ended(Event.ACKED)


def _waiting(day: Day, story: Story) -> None:
    story.due_at = day.end + 365 * 24 * HOUR_MS
    story.accepted()
    day.hold(story)


def _purged(day: Day, story: Story) -> None:
    story.queue, story.due_at = "trash", day.end + HOUR_MS
    story.accepted()


FATES: Sequence[Callable[[Day, Story], None]] = (
    *(_acked, _retried, _lapsed, _given_back, _cancelled, _expired),
    *(_deleted, _respawned, _replaced, _rescheduled, _waiting, _purged),
)


def a_day(
    journal: Path, start: int, *, rounds: int = 3, nodes: str = "ab", finish: Callable[[Day], None] | None = None
) -> Day:
    """Every fate so many times. `finish` may add to it before the nodes close."""
    day = Day(journal, start, [Node(journal, f"node-{letter}") for letter in nodes])
    for node in day.nodes:
        node.write(Event.HEARTBEAT, start)
    for number in range(rounds):
        for fate in FATES:
            batch = f"batch-{number}" if number % 2 else ""
            fate(day, day.story(f"{fate.__name__[1:]}-{number}", batch=batch))
    day.write(Event.PURGED, day.start + 23 * HOUR_MS, namespace=NAMESPACE, queue="trash", reason="delayed,ready")
    if finish:
        finish(day)
    for node in day.nodes:
        node.close(day.end)
    return day


def segments(journal: Path) -> Iterator[Path]:
    return iter(sorted(journal.glob("*/*.journal")))
