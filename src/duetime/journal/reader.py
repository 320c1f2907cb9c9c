"""Reads the journal, for the console, `duetime history`, the pipelines and the process that closes a dead node.

A reader answers entries in the order of their seq per node, damage with its place, and gaps with the numbers that are
missing. It never raises because of a segment's content, continues after damage at the next line, and may read while the
journal is written.

    for item in read_journal(folder):
        match item:
            case Entry(): ...
            case Damage(path, offset, what): ...
            case Gap(node, first, last): ...
"""

import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from duetime.journal.events import ENDS, Entry, read_line
from duetime.journal.segments import Segment, find, is_alive, nodes, segments
from duetime.model.job import Event

CLOCKS_DIFFER_MS = 600_000
PURGED = b'"event":"purged"'
SCANNED = 65_536
"""`find_offset` narrows its search down to this many bytes; `last_entry` first reads this many from the end."""


class Damage(NamedTuple):
    """`size` bytes of a segment, from `offset` on, that are not a valid line; `what` says why."""

    path: Path
    offset: int
    what: str
    size: int = 0


class Gap(NamedTuple):
    """Entries `first` to `last` of a node are missing: deleted with old segments if `first` is 1, else lost."""

    node: str
    first: int
    last: int


Item = Entry | Damage | Gap


class FoundEntry(NamedTuple):
    """`end` is the offset behind the item, where the next line begins."""

    item: Entry | Damage
    end: int


def read_segment(path: Path, offset: int = 0, *, complete: bool = True) -> Iterator[FoundEntry]:
    """The lines of a segment from `offset` on, where a line must begin.

    A last line without a newline is damage if the segment is `complete`, else it is still being written.
    Raises FileNotFoundError if the segment was deleted or, by being sealed, renamed.
    """
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            if not complete and not line.endswith(b"\n"):
                return
            at, offset = offset, offset + len(line)
            try:
                item = read_line(line)
            except ValueError as error:
                item = Damage(path, at, str(error), len(line))
            yield FoundEntry(item, offset)


def find_offset(path: Path, seq: int) -> int:
    """An offset at which a line begins, at the entry `seq` or not far before it. Raises FileNotFoundError."""
    with path.open("rb") as file:
        low, high = 0, file.seek(0, os.SEEK_END)
        while high - low > SCANNED:
            middle = (low + high) // 2
            file.seek(middle)
            file.readline()
            found, begin = _next_entry(file, high)
            if found is None or found.seq > seq:
                high = middle
            else:
                low = begin
        return low


def _next_entry(file: BinaryIO, end: int) -> tuple[Entry | None, int]:
    """The first valid entry from the file's position to `end`, and where it begins."""
    while (begin := file.tell()) < end:
        try:
            return read_line(file.readline()), begin
        except ValueError:
            continue
    return None, end


def last_entry(path: Path) -> Entry | None:
    """The last complete entry of a segment, read from its end. Raises FileNotFoundError."""
    with path.open("rb") as file:
        size, take = file.seek(0, os.SEEK_END), SCANNED
        while True:
            begin = max(size - take, 0)
            file.seek(begin)
            lines = file.read(size - begin).splitlines(keepends=True)
            for line in reversed(lines if begin == 0 else lines[1:]):
                try:
                    return read_line(line)
                except ValueError:
                    continue
            if begin == 0:
                return None
            take *= 4


def read_journal(journal: Path, *, only: Collection[str] | None = None) -> Iterator[Item]:
    """All entries of all nodes, or of the nodes named in `only`, node by node. Each node is read up to its end at the
    time; a `Tail` reads what comes later.
    """
    for node in nodes(journal):
        if only is None or node.name in only:
            yield from read_node(node)


def read_node(node: Path) -> Iterator[Item]:
    yield from Tail(node).read()


class Tail:
    """A place in a node's journal: each `read` answers the items that were written since the last one.

    Between two reads, segments may be sealed by their process or deleted by others. A Tail that begins `after` an
    entry finds its place by bisection and answers neither the entries before it nor the damage between those.
    """

    def __init__(self, node: Path, *, after: int = 0) -> None:
        self.node = node
        self._first = 0
        self._offset = 0
        self._seq = after

    def read(self) -> Iterator[Item]:
        # Asked before the segments are listed: if the process is dead by then, the list holds its last entry.
        alive = is_alive(self.node)
        known = segments(self.node)
        for segment in known:
            if segment.first < self._first or (not segment.is_open and segment.last <= self._seq):
                continue
            if segment.first > self._first:
                self._first, self._offset = segment.first, 0
                if segment.first > self._seq + 1:
                    yield Gap(self.node.name, self._seq + 1, segment.first - 1)
                    self._seq = segment.first - 1
            yield from self._read_segment(segment, alive=alive)

    def _read_segment(self, segment: Segment, *, alive: bool) -> Iterator[Item]:
        try:
            yield from self._read_lines(segment, alive=alive)
        except FileNotFoundError:
            # The segment was sealed since it was listed, or deleted; if deleted, its name says which entries are
            # missing.
            again = find(self.node, segment.first)
            if again and again.path != segment.path:
                yield from self._read_lines(again, alive=alive)
                segment = again
        if not segment.is_open and self._seq < segment.last:
            yield Gap(self.node.name, self._seq + 1, segment.last)
            self._seq = segment.last

    def _read_lines(self, segment: Segment, *, alive: bool) -> Iterator[Item]:
        complete = not (segment.is_open and alive)
        if self._offset == 0 and self._seq >= segment.first:
            self._offset = find_offset(segment.path, self._seq)
        damage: list[Damage] = []  # whether it comes before the place is known when the next entry is
        for item, end in read_segment(segment.path, self._offset, complete=complete):
            self._offset = end
            if isinstance(item, Damage):
                damage.append(item)
                continue
            if item.seq > self._seq:
                yield from damage
                if item.seq > self._seq + 1:
                    yield Gap(self.node.name, self._seq + 1, item.seq - 1)
                self._seq = item.seq
                yield item
            damage.clear()
        yield from damage


def read_job(journal: Path, job_id: str, *, since_ms: int = 0) -> Iterator[Entry | Damage]:
    """The entries about one id in all queues, and every purge, because a purge does not name the jobs that it removed.
    Segments that were last written before `since_ms` are skipped.

    Only lines that hold the id are decoded, so gaps and damage to other lines go unnoticed.
    """
    needles = (b'"id":' + msgspec.json.encode(job_id), PURGED)
    for node in nodes(journal):
        for segment in segments(node):
            if since_ms and _is_older(segment.path, since_ms):
                continue
            for item in _search(node, segment, needles):
                # An attribute may be called `id` as well.
                if isinstance(item, Damage) or item.event is Event.PURGED or item.id == job_id:
                    yield item


def _is_older(path: Path, since_ms: int) -> bool:
    """Returns whether the segment was last written well before `since_ms`; clocks may differ by CLOCKS_DIFFER_MS."""
    try:
        return path.stat().st_mtime * 1000 < since_ms - CLOCKS_DIFFER_MS
    except FileNotFoundError:
        return False


def _search(node: Path, segment: Segment, needles: Sequence[bytes]) -> Iterator[Entry | Damage]:
    try:
        content = segment.path.read_bytes()
    except FileNotFoundError:
        again = find(node, segment.first)
        if again and again.path != segment.path:
            yield from _search(node, again, needles)
        return
    starts = {content.rfind(b"\n", 0, at) + 1 for needle in needles for at in _places(content, needle)}
    for start in sorted(starts):
        end = content.find(b"\n", start) + 1
        if not end and segment.is_open:
            continue
        line = content[start : end or len(content)]
        try:
            yield read_line(line)
        except ValueError as error:
            yield Damage(segment.path, start, str(error), len(line))


def _places(content: bytes, needle: bytes) -> Iterator[int]:
    at = content.find(needle)
    while at >= 0:
        yield at
        at = content.find(needle, at + 1)


# --- the history of one id

RANKS = {
    Event.ACCEPTED: 0,
    Event.ADOPTED: 0,
    Event.REPLACED: 0,
    Event.DELIVERED: 1,
    Event.NOTIFIED: 2,
    Event.GIVEN_BACK: 3,
    Event.RELEASED: 3,
    Event.LEASE_EXPIRED: 3,
    Event.DEAD: 4,
    Event.RESPAWNED: 5,
    Event.RESCHEDULED: 6,
    Event.KEPT: 6,
}
"""The order of a job's events within one attempt; every event that is not listed ends the job."""
LAST_RANK = 7


def lives_of(entries: Sequence[Entry]) -> list[list[Entry]]:
    """One list per incarnation, sorted by pool, namespace, queue and born. An incarnation without an end of its own
    also gets the entries without a born (purges, and acks by id of a job that was gone) that may have ended it.
    """
    purges = [entry for entry in entries if not entry.born]
    lives: dict[tuple[str, str, str, int], list[Entry]] = {}
    for entry in entries:
        if entry.born:
            lives.setdefault((entry.pool, entry.namespace, entry.queue, entry.born), []).append(entry)
        if entry.event is Event.REPLACED and entry.was:
            lives.setdefault((entry.pool, entry.namespace, entry.queue, entry.was), []).append(entry)
    found: list[list[Entry]] = []
    for (pool, namespace, queue, born), life in sorted(lives.items()):
        life.sort(key=lambda entry: _order(entry, born))
        if not any(_ends(entry, born) for entry in life):
            place = (pool, namespace, queue)
            life += [one for one in purges if (one.pool, one.namespace, one.queue) == place and one.ts >= born]
        found.append(life)
    return found


def _order(entry: Entry, born: int) -> tuple[int, int, int, str, int]:
    if _ends(entry, born):
        return (2**32, LAST_RANK, entry.ts, entry.node, entry.seq)
    return (entry.attempt, RANKS.get(entry.event, LAST_RANK), entry.ts, entry.node, entry.seq)


def _ends(entry: Entry, born: int) -> bool:
    """Returns whether the entry ends the incarnation. A replaced entry ends the old one and begins the new one."""
    return entry.event in ENDS and (entry.event is not Event.REPLACED or entry.was == born)
