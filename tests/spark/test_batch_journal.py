"""A batch's journal: lines put together from columns say what entries made one by one do."""

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest

from duetime.journal.events import Entry, body_of
from duetime.journal.reader import read_journal
from duetime.model.job import Event, Moved, Priority
from duetime.model.names import Queue
from duetime.spark.load.batch_journal import FileJournal, SegmentFile
from duetime.spark.load.chunks import Portion
from duetime.spark.load.options import read_options
from duetime.stores.bulk import JobColumns, Loaded, LoadStep

QUEUE = Queue("crm", "recall")
NAMES = ["plain", 'quoted "id"', "ü-\N{SNOWMAN}", "last"]
TEXTS = [b"text", b'{"json": "\\n"}', "grüß\n".encode(), b""]
BYTES = [b"text", b"\xff\x00", b"\xc3", b""]


def entries(folder: Path, bodies: list[bytes], attributes: list[str | None] | None, moved: bool) -> list[Entry]:
    options = read_options({"url": "redis://x", "queue": "recall", "batch": "b1", "journal": str(folder)})
    due = [1_800_000_000_000 + number for number in range(len(NAMES))]
    columns = JobColumns(
        pa.array(NAMES, pa.string()),
        pa.array(bodies, pa.binary()),
        pa.array(due, pa.int64()),
        60_000,
        3,
        Priority.LOW,
        None if attributes is None else pa.array(attributes, pa.string()),
    )
    first, last = LoadStep(0, 1), LoadStep(1, len(NAMES))

    async def write() -> None:
        with SegmentFile(folder / "batch-b1", 1, 4) as file:
            journal = FileJournal(options, "batch-b1", 1, file)
            for step in (first, last):
                each = [Moved(Event.ACCEPTED, NAMES[at], 50, 0, due[at]) for at in range(step.first, step.last)]
                await journal.write(Portion(QUEUE, columns, [step]), Loaded(step, 1_000, 50, each if moved else ()))

    asyncio.run(write())
    read = list(read_journal(folder))
    assert all(isinstance(one, Entry) for one in read)
    return [one for one in read if isinstance(one, Entry)]


@pytest.mark.parametrize("bodies", [TEXTS, BYTES])
@pytest.mark.parametrize("attributes", [None, [None, '{"k":"v"}', None, None]])
def test_the_same_entries_either_way(tmp_path: Path, bodies: list[bytes], attributes: list[str | None] | None) -> None:
    by_columns = entries(tmp_path / "columns", bodies, attributes, moved=False)

    assert by_columns == entries(tmp_path / "rows", bodies, attributes, moved=True)
    assert [one.seq for one in by_columns] == [1, 2, 3, 4]
    assert [one.id for one in by_columns] == NAMES
    assert [body_of(one) for one in by_columns] == bodies
    first = by_columns[0]
    assert (first.node, first.batch, first.ts, first.born) == ("batch-b1", "b1", 1_000, 50)
    assert (first.due_at, first.ttl, first.tries, first.priority) == (1_800_000_000_000, 60_000, 3, Priority.LOW)
