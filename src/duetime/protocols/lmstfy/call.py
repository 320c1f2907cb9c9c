"""What a handler gets: the admitted request, and the tools that all requests share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from starlette.types import Receive, Scope

from duetime.engine import Engine
from duetime.model.clock import Clock, SystemClock
from duetime.model.ids import IdMaker
from duetime.model.job import Delivery
from duetime.model.names import Queue
from duetime.protocols.lmstfy.metrics import Metrics
from duetime.protocols.lmstfy.params import Defaults


@dataclass(frozen=True)
class LmstfyTools:
    """What all requests share."""

    metrics: Metrics
    defaults: Defaults
    max_body: int
    clock: Clock = field(default_factory=SystemClock)
    ids: IdMaker = field(default_factory=IdMaker)


class LmstfyCall:
    """One request.

    `queues` is that part of the path as it came; `queue` is the one queue that it names on every route but consume;
    `secret` is the token's, without its pool; `admitted` says that pool and namespace are real, not just asked for;
    `taken` are the deliveries to give back if the answer does not reach the client.
    """

    __slots__ = (
        "admitted",
        "api",
        "engine",
        "is_known",
        "job_id",
        "namespace",
        "pool",
        "query",
        "queue",
        "queues",
        "receive",
        "scope",
        "secret",
        "taken",
    )

    engine: Engine
    queue: Queue

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope = scope
        self.receive = receive
        self.query: Mapping[str, str] = {}
        self.api = self.pool = self.namespace = self.queues = self.job_id = self.secret = ""
        self.admitted = self.is_known = False
        self.taken: Sequence[Delivery] = ()
