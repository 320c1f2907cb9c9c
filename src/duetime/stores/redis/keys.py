"""The names of all keys and channels in Redis. The head of lua/modules/keys.lua says what each key of a queue holds.

A queue's keys share one hash tag and so one slot. There are 64 tags, fixed forever: a reaper reads 64 agendas and not
one per queue, and a Cluster spreads the tags over its nodes.
"""

from functools import lru_cache
from zlib import crc32

from duetime.model.names import Queue

PARTITIONS = 64

WAKE = "dt:wake"
"""Channel: "namespace/queue due_at"; or "namespace/queue r" and the ids of jobs whose results were kept, one per line,
none for too many to be named.
"""
REGISTRY_CHANGED = "dt:registry"
"""Channel: the registry's new version."""
EPOCH = "dt:epoch"
"""String: a random text, drawn once per data set."""
REGISTRY = "dt:{registry}"
"""Prefix: `:version` string, `:records:<kind>` hash key -> version + value, `:changes` zset kind NUL key by version,
`:deleted` the same for deleted records, `:forgotten` version of the last deletion that was dropped from it, `:counters`
hash name -> value, `:lives` zset name by the end of its life.
"""


@lru_cache(maxsize=65_536)
def prefix(queue: Queue) -> str:
    """The text with which all keys of a queue begin; KEYS[1] of every queue script."""
    name = str(queue)
    return f"dt:{{{crc32(name.encode()) % PARTITIONS:02}}}:{name}"


def agenda(partition: int) -> str:
    """Zset: queue by a lower bound of its next lease end or expiry."""
    return f"dt:{{{partition:02}}}:queues"


def companion(prefix_of_script: str) -> str:
    """KEYS[2] of a script: the agenda of the queue's partition, or the version of the registry."""
    return f"{REGISTRY}:version" if prefix_of_script == REGISTRY else f"{prefix_of_script[:7]}:queues"


AGENDAS = tuple(agenda(partition) for partition in range(PARTITIONS))
