"""The demo's consumers: a few threads that work through the server and go on trying while the store is gone.

One reminder in a hundred fails the first time and is tried again; one in a thousand is refused for good and becomes a
dead letter. The id alone decides which ones, so they are the same in every run.
"""

import threading
from collections import Counter
from collections.abc import Sequence
from zlib import crc32

from duetime.client import Client
from duetime.client.client import LeasedJob
from duetime.model.errors import DuetimeError
from duetime.model.job import Moved

PAUSE_S = 0.2
LIMIT = 50
RETRY = "1s"


class Consumers:
    """A context manager: the threads run until it ends. `tally` counts what they did."""

    def __init__(self, url: str, *, namespace: str, queue: str, threads: int = 4) -> None:
        self._url, self._namespace, self._queue = url, namespace, queue
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._run, name=f"consumer {n}", daemon=True) for n in range(threads)]
        self.tally: Counter[str] = Counter()

    def __enter__(self) -> "Consumers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        with Client(self._url, namespace=self._namespace) as client:
            while not self._stopping.is_set():
                try:
                    self._work(client, client.queue(self._queue).reserve(limit=LIMIT, ttr="15s", wait=1))
                except DuetimeError:
                    self._count("refused", 1)
                    self._stopping.wait(PAUSE_S)

    def _work(self, client: Client, deliveries: Sequence[LeasedJob]) -> None:
        self._count("delivered", len(deliveries))
        done: list[LeasedJob] = []
        for delivery in deliveries:
            chance = crc32(delivery.lease.id.encode()) % 1000
            if chance == 1:
                client.kill(delivery, error="no such address")
                self._count("killed", 1)
            elif chance < 11 and delivery.lease.attempt == 1:
                client.release(delivery, delay=RETRY, error="mail server busy")
                self._count("released", 1)
            else:
                done.append(delivery)
        if done:
            answers = client.queue(self._queue).ack(done)
            self._count("acked", sum(isinstance(answer, Moved) for answer in answers))

    def _count(self, word: str, number: int) -> None:
        with self._lock:
            self.tally[word] += number
