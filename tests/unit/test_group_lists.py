"""Lists of a group: the pages of its members are one list, with cursors that every store understands."""

from duetime.model.clock import ManualClock
from duetime.model.job import NewJob, State
from duetime.model.names import Queue
from duetime.stores.base import Cursor, Push
from duetime.stores.group.store import GroupStore
from duetime.stores.memory.store import MemoryStore

QUEUE = Queue("shop", "mail")


async def test_a_list_goes_on_after_any_job_of_any_member() -> None:
    """The console goes on after the last job that it shows, wherever that job lives."""
    clock = ManualClock()

    async def open_member() -> MemoryStore:
        return MemoryStore(clock)

    group = await GroupStore.open("g", dict.fromkeys("abc", open_member))
    names = [f"{n:02}" for n in range(30)]
    await group.push(QUEUE, [Push([NewJob(name, b"", delay_ms=1000 + n) for n, name in enumerate(names)])])

    everything = (await group.list_jobs(QUEUE, State.DELAYED)).jobs
    assert [job.id for job in everything] == names
    for place, job in enumerate(everything):
        page = await group.list_jobs(QUEUE, State.DELAYED, cursor=str(Cursor.of(job)))
        assert [other.id for other in page.jobs] == names[place + 1 :]
    await group.close()
