"""The registry contract: how a store keeps everything that is not a job.

Namespaces, tokens, limits, topics, users and alerts are records: a kind, a key, opaque bytes and the version of their
last write. Each write raises the registry's one version and announces it, so that a process follows all changes with
`changes(since)`. Counters are kept with them; they carry no version and announce nothing.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

from msgspec import Struct, json

from duetime.model.errors import VersionConflict


class Record(Struct, frozen=True):
    kind: str
    key: str
    value: bytes
    version: int


MOVED_AWAY = "moved"
"""The kind of the record in a store from which all jobs were moved: it says where to."""
GROUP_COPY = "group-copy"
"""The kinds of the records by which a group of stores keeps copies of its registry begin with this."""
GROUP_DRAIN = "group-drain"
"""The kind of the record, by group, of the members that drain because somebody decided so while the servers run."""
POOL = "pool"
"""The kind of the records that name pools in addition to those of the settings; the value is the URL."""
SHARES = "shares"
"""The kind of the records with the shares of the priorities, by namespace: `8:1:1`."""
BRIDGE = "bridge"
"""The kind of the records with the sizes of other systems' queues, by the name of the bridge."""
MAX_TOMBSTONES = 500
"""How many deletions a registry remembers: the latest ones, each key once."""


class Changes(Struct, frozen=True):
    """Everything written after `since`: the records as they are now, and the (kind, key) of those that are gone.

    `is_complete`: more was deleted since then than the registry remembers. `records` then has every record, and any
    other record that the caller knows is gone.
    """

    version: int
    records: Sequence[Record]
    deleted: Sequence[tuple[str, str]]
    is_complete: bool = False


class Counter(Struct, frozen=True):
    """`left_ms` is what remains of the counter's life, 0 if it never ends."""

    value: int
    left_ms: int = 0


class Registry(Protocol):
    async def get(self, kind: str, key: str) -> Record | None:
        """One record."""
        ...

    async def put(self, kind: str, key: str, value: bytes, *, if_version: int | None = None) -> Record:
        """Write a record. With `if_version=0` only if there is none, with another number only if that is its version.

        Atomic; idempotent without if_version. Raises VersionConflict.
        """
        ...

    async def delete(self, kind: str, key: str, *, if_version: int | None = None) -> bool:
        """Remove a record. Returns False if there was none, and then the version does not rise.

        Atomic; idempotent. Raises VersionConflict.
        """
        ...

    async def list_records(self, kind: str) -> Sequence[Record]:
        """All records of a kind, sorted by key."""
        ...

    async def changes(self, since: int = 0) -> Changes:
        """What changed after version `since`, and the version to ask from next time. Each key once.

        The last MAX_TOMBSTONES deletions are remembered; a caller that asks from before them gets every record, and
        `is_complete` is set.
        """
        ...

    def watch(self) -> AsyncIterator[int]:
        """The registry's version: once at the start, after every reconnect and after writes by any process.

        A hint: versions may be skipped or lost. Call `changes` to read what was written, also every second.
        """
        ...

    async def increment(self, name: str, by: int = 1, *, life_ms: int = 0) -> Counter:
        """Add to a counter, creating it with the given life (0 = no end). A counter past its life starts anew at 0.

        by=0 reads without creating. Atomic; not idempotent.
        """
        ...

    async def counters(self, prefix: str = "") -> Mapping[str, int]:
        """All live counters whose name starts with `prefix`."""
        ...


# --- drained members of a group


def read_drain(record: Record | None) -> frozenset[str]:
    """The members that drain by a record of the kind GROUP_DRAIN."""
    return frozenset(json.decode(record.value, type=list[str])) if record else frozenset()


async def set_drain(registry: Registry, group: str, member: str, *, drains: bool) -> None:
    """Stop or resume pushes of new jobs to a member. Each process of the deployment follows within about a second.

    A member that the settings drain as well drains whatever the record says.
    """
    while True:
        record = await registry.get(GROUP_DRAIN, group)
        members = read_drain(record) | {member} if drains else read_drain(record) - {member}
        try:
            await registry.put(
                GROUP_DRAIN, group, json.encode(sorted(members)), if_version=record.version if record else 0
            )
        except VersionConflict:
            continue
        return
