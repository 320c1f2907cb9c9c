"""The journal as a table: `read` and `readStream` with the journal's folder.

An offset is, per node, the number of the last entry that was read. A node's entries have no gaps, so that is exact; the
names of segments and a bisection lead to the place, so no trigger reads again what an earlier one has read. Complete
entries are read, also those of the segment that is being written. Entries that are gone (deleted or shipped before they
were read) end the query, unless `failOnDataLoss` is false; a damaged line is logged, and the one entry that stood on it
is skipped. A folder must be the same on the driver and on every executor. At any other address that fsspec knows are
the copies that servers ship (`journal_ship_to`), which are sealed segments only. `read` runs on executors, the rest on
the driver.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from msgspec import UNSET
from msgspec.structs import astuple
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from duetime.journal.events import Entry, body_of
from duetime.journal.options import URI, local_folder
from duetime.journal.reader import Damage, Gap, Item, Tail, last_entry
from duetime.journal.segments import Segment, nodes, parse, segments
from duetime.model.errors import InvalidSettings, StoreDamaged
from duetime.model.masking import mask
from duetime.spark.schemas import BYTES, ENTRY, columns
from duetime.spark.session import SPARK

HAS_LIMITS = SPARK >= (4, 2)
"""Older versions call `latestOffset` without arguments, and read all there is in each micro-batch."""
if TYPE_CHECKING or HAS_LIMITS:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
else:
    ReadAllAvailable = ReadLimit = ReadMaxRows = SupportsTriggerAvailableNow = object

ENTRIES = StructType(
    [field for field in ENTRY.fields if field.name not in ("body", "body_b64")] + columns(body=BYTES).fields
)
"""The fields of `journal.events.Entry`, with the body as bytes."""

OPTIONS = ("journal", "path", "maxRowsPerTrigger", "failOnDataLoss")
_PLAIN = tuple(name for name in ENTRIES.names if name != "body")
_log = logging.getLogger(__name__)

Offset = dict[str, Any]
"""Node -> seq of its last entry that was read."""


def named_options(options: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """The options under their names as documented; Spark hands them over in lower case. Raises InvalidSettings."""
    known = {name.lower(): name for name in names}
    if unknown := [name for name in options if name.lower() not in known]:
        raise InvalidSettings(f"unknown option {unknown[0]!r}; there are {', '.join(names)}")
    return {known[name.lower()]: value for name, value in options.items()}


class Entries(InputPartition):
    """Entries `first` to `last` of one node."""

    def __init__(self, node: str, first: int, last: int) -> None:
        super().__init__(None)
        self.node, self.first, self.last = node, first, last


class JournalReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Mapping[str, str]) -> None:
        given = named_options(options, OPTIONS)
        self._journal = _journal(given.get("journal") or given.get("path", ""))
        most = given.get("maxRowsPerTrigger", "0")
        if not most.isdecimal():
            raise InvalidSettings(f"maxRowsPerTrigger must be a whole number, got {most!r}")
        self._most = int(most)
        if self._most and not HAS_LIMITS:
            raise InvalidSettings("maxRowsPerTrigger needs Spark 4.2")
        fails = given.get("failOnDataLoss", "true")
        if fails.lower() not in ("true", "false"):
            raise InvalidSettings(f"failOnDataLoss must be true or false, got {fails!r}")
        self._tolerant = fails.lower() == "false"
        self._target: Offset | None = None

    def initialOffset(self) -> Offset:
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._most) if self._most else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._newest()

    def reportLatestOffset(self) -> Offset:
        return self._newest()

    def latestOffset(self, start: Offset | None = None, limit: ReadLimit | None = None) -> Offset:
        start = start or {}
        newest = self._target if self._target is not None else self._newest()
        waiting = {node: last - start.get(node, 0) for node, last in newest.items() if last > start.get(node, 0)}
        if HAS_LIMITS and isinstance(limit, ReadMaxRows):
            waiting = fair_shares(waiting, limit.max_rows, turn=sum(start.values()))
        return start | {node: start.get(node, 0) + rows for node, rows in waiting.items() if rows}

    def _newest(self) -> Offset:
        if isinstance(self._journal, ShippedJournal):
            return self._journal.newest()
        return {node.name: last for node in nodes(self._journal) if (last := _last(node))}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        return [Entries(node, start.get(node, 0) + 1, last) for node, last in end.items() if last > start.get(node, 0)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert isinstance(partition, Entries)
        damaged = 0  # lines since the last entry
        for item in self._items(partition):
            match item:
                case Entry():
                    if item.seq > partition.last:
                        return
                    damaged = 0
                    yield _row(item)
                case Gap(_, first, last):
                    is_ours = first <= partition.last and last >= partition.first
                    if is_ours and last - first + 1 > damaged:
                        self._miss(item, partition)
                    damaged = 0
                case Damage(path, offset, what):
                    damaged += 1
                    _log.warning("journal_damage path=%s offset=%d what=%s", path, offset, what)

    def _items(self, partition: Entries) -> Iterator[Item]:
        if isinstance(self._journal, ShippedJournal):
            return self._journal.read(partition)
        return Tail(self._journal / partition.node, after=partition.first - 1).read()

    def _miss(self, gap: Gap, partition: Entries) -> None:
        """Raises StoreDamaged for entries that are gone; only logs them if failOnDataLoss is false."""
        text = f"entries {max(gap.first, partition.first)} to {min(gap.last, partition.last)} of {gap.node} are gone"
        if not self._tolerant:
            raise StoreDamaged(f"{text}; the option failOnDataLoss=false goes on without them", node=gap.node)
        _log.warning("journal_gap %s", text)


class JournalRows(DataSourceReader):
    """All entries that the journal has now, as a batch."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        if schema != ENTRIES:
            raise InvalidSettings("a journal's columns are fixed: leave the schema out, and select from them")
        self._entries = JournalReader({name: one for name, one in options.items() if name.lower() != "table"})

    def partitions(self) -> Sequence[InputPartition]:
        return self._entries.partitions({}, self._entries.latestOffset()) or [Entries("", 1, 0)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert isinstance(partition, Entries)
        return self._entries.read(partition) if partition.node else iter(())


def fair_shares(waiting: Mapping[str, int], room: int, *, turn: int) -> dict[str, int]:
    """How many of its waiting entries each node may send. All get an equal part of `room`, and a part that a node does
    not need goes to the others, so that a busy node cannot keep the others from being read.

    What an equal division leaves goes to single nodes, beginning with another one at each `turn`, the number of entries
    read so far: every node gets its turn, even if there are more nodes than room.
    """
    shares: dict[str, int] = {}
    for index, node in enumerate(sorted(waiting, key=waiting.__getitem__)):
        shares[node] = min(waiting[node], room // (len(waiting) - index))
        room -= shares[node]
    names = sorted(waiting)
    first = turn % len(names) if names else 0
    for node in [*names[first:], *names[:first]]:
        if room and shares[node] < waiting[node]:
            shares[node] += 1
            room -= 1
    return shares


class ShippedJournal:
    """The copies of a journal at an address of fsspec, which executors open anew."""

    def __init__(self, url: str) -> None:
        self._url = url
        if not self._list(*self._open()):
            raise InvalidSettings(f"there is no journal in {mask(url)}")

    def newest(self) -> Offset:
        """The last entry of each node."""
        system, root = self._open()
        found = {node: self._segments(system, root, node) for node in self._list(system, root)}
        return {node: some[-1].last for node, some in found.items() if some}

    def read(self, entries: Entries) -> Iterator[Item]:
        """One segment after the other is copied to a temporary folder, read there and deleted."""
        system, root = self._open()
        with TemporaryDirectory(prefix="duetime-journal-") as folder:
            node = Path(folder) / entries.node
            node.mkdir()
            tail = Tail(node, after=entries.first - 1)
            for segment in self._segments(system, root, entries.node):
                if segment.last >= entries.first and segment.first <= entries.last:
                    copy = node / segment.path.name
                    system.get_file(f"{root}/{entries.node}/{copy.name}", str(copy))
                    yield from tail.read()
                    copy.unlink()

    def _open(self) -> tuple[Any, str]:
        try:
            core: Any = import_module("fsspec.core")
            system, root = core.url_to_fs(self._url)
        except ModuleNotFoundError as missing:
            raise InvalidSettings.lacks("a journal that is not a folder", "ship", missing) from None
        except (ImportError, ValueError) as error:
            raise InvalidSettings(f"journal: {error}") from None
        system.invalidate_cache()
        return system, str(root).rstrip("/")

    def _list(self, system: Any, folder: str) -> list[str]:
        try:
            return sorted(str(one).rstrip("/").rpartition("/")[2] for one in system.ls(folder, detail=False))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _segments(self, system: Any, root: str, node: str) -> list[Segment]:
        """The sealed segments of a node, in the order of their entries."""
        found = [segment for name in self._list(system, f"{root}/{node}") if (segment := parse(Path(name)))]
        return sorted((one for one in found if not one.is_open), key=lambda one: one.first)


def _journal(text: str) -> Path | ShippedJournal:
    if not text:
        raise InvalidSettings("the option journal is missing: the journal's folder, or where servers ship it to")
    if URI.match(text) and not text.startswith("file:"):
        return ShippedJournal(text)
    folder = local_folder(text)
    if not folder.is_dir():
        raise InvalidSettings(f"there is no journal in {folder}")
    return folder


def _last(node: Path) -> int:
    """The newest entry of a node; 0 if there is none."""
    found = segments(node)
    for segment in reversed(found):
        if not segment.is_open:
            return segment.last
        try:
            if entry := last_entry(segment.path):
                return entry.seq
        except FileNotFoundError:
            continue  # sealed in the meantime: the next call finds it under its new name
    return 0


def _row(entry: Entry) -> tuple[Any, ...]:
    values = {name: getattr(entry, name) for name in _PLAIN} | {"attributes": dict(entry.attributes)}
    values["join"] = None if entry.join is UNSET else astuple(entry.join)
    return (*[values[name] for name in _PLAIN], body_of(entry))
