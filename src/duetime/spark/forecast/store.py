"""What waits in the store, by queue and step. The client reads it, from a server or from a store of any kind."""

from collections.abc import Callable, Sequence
from itertools import pairwise

from duetime.client import Client
from duetime.spark.forecast.model import QueueName

EDGES_PER_CALL = 200
"""The edges travel in the address of a GET, which must not become too long."""


def pending_loads(
    client: Client, edges: Sequence[int], *, told: Callable[[int, int], None] = lambda done, total: None
) -> dict[QueueName, list[int]]:
    """Jobs per step between each two edges, for every queue of the client's namespace.

    Jobs that are ready or leased now count in the first step, because they take their share of the capacity too. Paused
    queues are counted like others. Queues are read one after the other, not all at one moment.
    """
    statuses = client.queues()
    found: dict[QueueName, list[int]] = {}
    for number, status in enumerate(statuses):
        queue = client.queue(status.queue.name)
        counts: list[int] = []
        for first in range(0, len(edges) - 1, EDGES_PER_CALL):
            counts += queue.due_histogram(edges[first : first + EDGES_PER_CALL + 1])
        overdue = queue.due_histogram([0, edges[0]])[0] if edges[0] > 0 else 0
        counts[0] += overdue + status.counts.leased
        found[(status.queue.namespace, status.queue.name)] = counts
        told(number + 1, len(statuses))
    assert all(len(counts) == len(list(pairwise(edges))) for counts in found.values())
    return found
