"""The wake that announces kept results."""

from collections.abc import Sequence

from duetime.model.names import Queue
from duetime.stores.base import Wake

MAX_WAKE_RESULTS = 32
"""How many jobs a wake names."""


def results_wake(queue: Queue, ids: Sequence[str]) -> Wake:
    return Wake(queue, results=tuple(ids) if len(ids) <= MAX_WAKE_RESULTS else ())
