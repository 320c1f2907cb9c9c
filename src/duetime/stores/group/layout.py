"""Where a job of a group lives: rendezvous hashing over the current members, and over the members of earlier times.

A layout is the set of members that took new jobs at a time. A job's home is the member with the highest hash of
(member, queue, id); adding or removing one member moves the homes of that member's share and of no other job. A job
that was pushed under an earlier layout stays where it is. So a job is searched at its home and then at its earlier
homes; for most jobs these are the same member.

Only the part of an id before the first `~>` counts. So `order-7`, `order-7~>mail` and `order-7~>mail~>2` have the same
home, whatever the members are, and a job can be finished together with the push of one that follows it.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b

import msgspec

from duetime.model.errors import StoreDamaged
from duetime.model.names import Queue, placing_part

Layout = tuple[str, ...]
"""Names of members, sorted."""


def home(queue: Queue, job_id: str, layout: Layout) -> str:
    """The job's home in a layout. This rule must never change, because stored jobs are found by it."""
    key = f"{queue}\0{placing_part(job_id)}".encode()
    return max(layout, key=lambda name: (blake2b(key, digest_size=8, key=name.encode()[:64]).digest(), name))


class Layouts(msgspec.Struct, frozen=True):
    """The current layout and every earlier one that may still have jobs."""

    current: Layout
    earlier: tuple[Layout, ...] = ()

    def homes(self, queue: Queue, job_id: str) -> list[str]:
        """The members where the job can be: its home first, each once."""
        found = [home(queue, job_id, self.current)]
        for layout in self.earlier:
            place = home(queue, job_id, layout)
            if place not in found:
                found.append(place)
        return found


def merge(current: Layout, known: Iterable[Layout]) -> Layouts:
    """The current layout, with all other known ones as earlier layouts."""
    return Layouts(current, tuple(sorted({layout for layout in known if layout and layout != current})))


def without(layouts: Layouts, emptied: Iterable[str]) -> Layouts:
    """Take members that hold no jobs any more out of the earlier layouts."""
    gone = set(emptied)
    return merge(layouts.current, [tuple(name for name in old if name not in gone) for old in layouts.earlier])


def write(layouts: Layouts) -> bytes:
    return msgspec.json.encode([layouts.current, *layouts.earlier])


def read(value: bytes) -> Sequence[Layout]:
    """The layouts in a record. Raises StoreDamaged."""
    try:
        return msgspec.json.decode(value, type=list[Layout])
    except msgspec.DecodeError as error:
        raise StoreDamaged(f"the record of the group's layouts cannot be read: {error}") from None
