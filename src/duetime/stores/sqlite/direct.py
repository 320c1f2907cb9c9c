"""Direct calls (`stores/direct.py`) to a SQLite file: from the caller's thread to the writer's and back.

The writer's thread and not the caller's runs the transaction. A caller's thread may be interrupted at any point, by a
signal whose handler forks or calls this store again; in the middle of a transaction both would wait for ever.
"""

from collections.abc import Callable, Sequence

from duetime.errors import DuetimeError, StoreFull
from duetime.job import Lease, Moved
from duetime.names import Queue
from duetime.stores.base import Ask, Push, Pushed, Reserved
from duetime.stores.direct import Orphan
from duetime.stores.sql import verbs
from duetime.stores.sql.step import Step
from duetime.stores.sqlite.threads import WriterThread

PushOperation = Callable[[Step, Queue, Sequence[Push]], Sequence[Pushed | DuetimeError]]


class DirectSqlite:
    """Keeps `stores.direct.DirectCalls`."""

    def __init__(self, writer: WriterThread, push: PushOperation) -> None:
        self._writer, self._push = writer, push

    def push(self, queue: Queue, request: Push) -> Pushed | DuetimeError:
        try:
            [answer] = self._writer.run_from_thread(
                lambda step: self._push(step, queue, [request]), queue=queue, adds=True
            )
        except StoreFull as full:
            return full
        return answer

    def reserve(self, queue: Queue, ask: Ask, orphan: Orphan) -> Reserved:
        def take_back(reserved: Reserved) -> None:
            for delivery in reserved.deliveries[0]:
                orphan(delivery)

        return self._writer.run_from_thread(
            lambda step: verbs.reserve(step, queue, [ask]), queue=queue, orphan=take_back
        )

    def ack(self, lease: Lease) -> Moved | None:
        [answer] = self._writer.run_from_thread(lambda step: verbs.ack(step, lease.queue, [lease]), queue=lease.queue)
        return answer if isinstance(answer, Moved) else None

    def close(self) -> None:
        """The writer belongs to the store."""
