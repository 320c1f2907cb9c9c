"""A lease as one word that a shell can carry from `reserve` to `ack`.

`namespace/queue:id:born:attempt`, the id percent-encoded. The word holds all of the fence, so that it works whatever
namespace the next command is set to, and only characters that need no quotes in a shell.
"""

from urllib.parse import quote, unquote

from duetime.model.errors import InvalidRequest
from duetime.model.job import Lease
from duetime.model.names import Queue, check_id, check_queue


def write_lease(lease: Lease) -> str:
    return f"{lease.queue}:{quote(lease.id, safe='')}:{lease.born}:{lease.attempt}"


def read_lease(text: str) -> Lease:
    """The inverse; InvalidRequest for anything else."""
    parts = text.strip().split(":")
    if len(parts) != 4 or not all(part.isascii() and part.isdigit() for part in parts[2:]):
        raise InvalidRequest(f"not a lease: {text!r}; take it from the output of `duetime reserve`")
    queue = Queue.parse(parts[0])
    return Lease(check_queue(*queue), check_id(unquote(parts[1])), int(parts[2]), int(parts[3]))
