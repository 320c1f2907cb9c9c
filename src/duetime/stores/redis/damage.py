"""Logs jobs that cannot be read. A script that meets one sets it aside and goes on; counts show how many there are."""

import logging

from duetime.model.job import Moved
from duetime.model.names import Queue
from duetime.stores.redis.codec import read_moved

log = logging.getLogger("duetime.stores")


def read_happened(queue: Queue, pairs: list[bytes]) -> list[Moved]:
    """Reads a list of id, moved, id, moved ... An empty moved means that the job was set aside; that is logged."""
    happened: list[Moved] = []
    for i in range(0, len(pairs), 2):
        job_id, moved = pairs[i], pairs[i + 1]
        if moved:
            happened.append(read_moved(job_id.decode(), moved))
        else:
            shown = job_id.decode(errors="backslashreplace")
            log.error("damaged_job_set_aside", extra={"queue": str(queue), "job": shown})
    return happened
