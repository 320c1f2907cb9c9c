"""Closes the journal of a process that died; any process that writes to the same journal folder does this.

The open segment is sealed after its last valid line, with a `closed` entry appended. A line that was cut off when the
process died is removed: nobody got an answer that relied on it. Damage before the last valid line stays where it is,
for readers to report.
"""

import os
import time
from pathlib import Path
from typing import NamedTuple

from duetime.journal.events import Draft
from duetime.journal.lines import place_of, write_draft
from duetime.journal.reader import Damage, read_segment
from duetime.journal.segments import Lock, Segment, open_name, own_nodes, sealed_name, segments, sync_folder
from duetime.model.job import Event

SUCCESSOR = "successor"


def close_dead_nodes(journal: Path) -> list[str]:
    """Close every node of this user whose process is gone; answers their names. Safe in many processes at once.

    Raises OSError.
    """
    return [node.name for node in own_nodes(journal) if close_if_dead(node)]


def close_if_dead(node: Path) -> bool:
    lock = Lock.take(node)
    if lock is None:
        return False
    ended = False
    try:
        _close(node)
        ended = True
    finally:
        lock.release(ended=ended)
    return True


def _close(node: Path) -> None:
    last, closed = 0, False
    tail: Segment | None = None
    for segment in segments(node):
        if tail:
            _seal(tail, last)
            tail = None
        if not segment.is_open:
            last, closed = segment.last, _end_of(segment).closed
        elif (end := _end_of(segment)).offset:
            os.truncate(segment.path, end.offset)
            last, closed, tail = end.seq, end.closed, segment
        else:
            segment.path.unlink()
    if not closed:
        last += 1
        tail = tail or Segment(node / open_name(last), last, 0)
        _append_closed(tail, node.name, last)
    if tail:
        _seal(tail, last)


class End(NamedTuple):
    """Where the last valid line ends, its seq, and whether it closes the node; End() if there is no valid line."""

    offset: int = 0
    seq: int = 0
    closed: bool = False


def _end_of(segment: Segment) -> End:
    end = End()
    for item, behind in read_segment(segment.path):
        if not isinstance(item, Damage):
            end = End(behind, item.seq, item.event is Event.CLOSED)
    return end


def _append_closed(segment: Segment, node: str, seq: int) -> None:
    now = time.time_ns() // 1_000_000
    draft = Draft(ts=now, event=Event.CLOSED, reason=SUCCESSOR)
    with segment.path.open("ab") as file:
        file.write(write_draft(draft, place_of(now, node, seq)))


def _seal(segment: Segment, last: int) -> None:
    with segment.path.open("ab") as file:
        os.fsync(file.fileno())
    segment.path.rename(segment.path.with_name(sealed_name(segment.first, last)))
    sync_folder(segment.path.parent)
