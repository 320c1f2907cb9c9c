"""Everything that happened to a job, read from the journal on this machine's disk within a few seconds."""

import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple

from duetime.journal.events import ENDS, Entry
from duetime.journal.options import options_of
from duetime.journal.reader import lives_of, read_job
from duetime.model.names import Queue
from duetime.model.settings import Settings

WITHIN_S = 3.0


class JobTimeline(NamedTuple):
    """One list of entries per incarnation of the id, oldest first.

    `has_journal` says whether this machine has a journal; `is_cut`, whether there was no time to read all of it.
    """

    lives: Sequence[Sequence[Entry]]
    has_journal: bool
    is_cut: bool = False

    @property
    def ends(self) -> frozenset[str]:
        return frozenset(ENDS)


async def read_timeline(settings: Settings, pool: str, queue: Queue, job_id: str, *, born: int) -> JobTimeline:
    """Skips the files that were closed before the job was `born`."""
    options = options_of(settings)
    if options is None or not options.folder.is_dir():
        return JobTimeline((), has_journal=False)
    folder = options.folder

    def read() -> JobTimeline:
        deadline = time.monotonic() + WITHIN_S
        entries: list[Entry] = []
        cut = False
        for item in read_job(folder, job_id, since_ms=born):
            if isinstance(item, Entry) and (item.pool, item.namespace, item.queue) == (pool, *queue):
                entries.append(item)
            if time.monotonic() > deadline:
                cut = True
                break
        return JobTimeline(lives_of(entries), has_journal=True, is_cut=cut)

    return await asyncio.to_thread(read)
