"""The arguments of a handler: the admitted request, and the tools that all requests share.

`LmstfyOperation` is the same for a request on the fast path (`protocols/fast_path.py`).
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from starlette.types import Receive, Scope

from duetime.engine import Engine
from duetime.engine.pools import Pools
from duetime.engine.requests import Request
from duetime.http.exchange import Exchange
from duetime.model.clock import Clock, SystemClock
from duetime.model.ids import IdMaker
from duetime.model.job import Delivery
from duetime.model.names import Queue
from duetime.protocols.lmstfy.metrics import Metrics
from duetime.protocols.lmstfy.wire import Defaults, LmstfyAnswer, answer_to

Asked = TypeVar("Asked")


@dataclass(frozen=True)
class LmstfyTools:
    """Objects that all requests share."""

    metrics: Metrics
    defaults: Defaults
    max_body: int
    clock: Clock = field(default_factory=SystemClock)
    ids: IdMaker = field(default_factory=IdMaker)


class LmstfyCall:
    """One request.

    `queues` is that part of the path as it came; `queue` is the one queue that it names on every route but consume;
    `secret` is the token's, without its pool; `admitted` says that pool and namespace are real, not just asked for;
    `delivered` are the deliveries to give back if the answer does not reach the client.
    """

    __slots__ = (
        "admitted",
        "api",
        "delivered",
        "engine",
        "job_id",
        "namespace",
        "pool",
        "query",
        "queue",
        "queues",
        "receive",
        "scope",
        "secret",
    )

    engine: Engine
    queue: Queue

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope = scope
        self.receive = receive
        self.query: Mapping[str, str] = {}
        self.api = self.pool = self.namespace = self.queues = self.job_id = self.secret = ""
        self.admitted = False
        self.delivered: Sequence[Delivery] = ()


class LmstfyOperation(Generic[Asked]):
    """`asked` are the parameters of the query; `route` is the place in the metrics: pool, namespace, api, method.

    `Exchange.context` is the monotonic time at which the request began.
    """

    def __init__(
        self, pools: Pools, tools: LmstfyTools, queue: Queue, asked: Asked, route: tuple[str, str, str, str]
    ) -> None:
        self.pools = pools
        self.tools = tools
        self.queue = queue
        self.asked = asked
        self._route = route
        self.pool = route[0]

    def submit(self, exchange: Exchange) -> bool:
        raise NotImplementedError

    def respond(self, exchange: Exchange, result: Any) -> None:
        raise NotImplementedError

    def begin(self, exchange: Exchange, request: Request[Any]) -> None:
        exchange.context = time.monotonic()
        self.pools.engine(self.pool).submit(request, exchange)

    def finish(self, exchange: Exchange, answer: LmstfyAnswer) -> bool:
        """Returns False if the client disconnected."""
        status, body, headers = answer
        reached = exchange.finish(status, tuple(headers), body)
        self.tools.metrics.finished(self._route, status, time.monotonic() - exchange.context)
        return reached

    def fail(self, exchange: Exchange, error: Exception) -> None:
        self.finish(exchange, answer_to(error))
