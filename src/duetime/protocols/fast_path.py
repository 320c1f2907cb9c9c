"""The fast path: push, reserve and ack of one queue, in the native API and in lmstfy's, without a task and a scope.

    Connection -> Exchange.begin -> RequestFastPath.accept -> Operation.submit -> Engine.submit(request, exchange)
                                                               Operation.respond <- Exchange.set_result <- batcher

An application that has admitted and served a request remembers its head here: method, target and credentials. For the
next request with the same head, route, names, token and limit need no check, because they depend only on the head and
the registry; a change of any token, limit or setting in the registry ends that. The guard against web pages of other
sites checks every request. A request goes to the application if its token has a rate limit, it names several queues, a
header changes its meaning, or its body is not valid. So do all requests while the access log or tracing is on.
"""

import logging
import time
from collections.abc import Callable

from duetime.engine.registry_copy import RegistryCopy
from duetime.http.exchange import Exchange, Operation
from duetime.http.proxies import HeaderList
from duetime.model.errors import DuetimeError
from duetime.protocols.access_log import KIND as SETTING
from duetime.protocols.access_log import AccessLog
from duetime.protocols.rate_limits import KIND as LIMIT
from duetime.protocols.tokens import KIND as TOKEN

log = logging.getLogger("duetime.server")

KNOWN_HEADS = 1024
LONGEST_HEAD = 1024
"""How many heads are remembered, and the most bytes of one."""
LONGEST_ID = 128
CREDENTIALS = frozenset({b"authorization", b"x-token"})
UNUSUAL = frozenset({b"idempotency-key", b"enable-job-version"})
"""Headers that give a request another meaning."""

Head = tuple[bytes, bytes, bytes]
"""Method, target and credentials; of a DELETE's target the part before the job's id."""
Guard = Callable[[HeaderList, bool], str]
"""Takes the headers, and whether the client came through a Unix socket. Returns why the request is refused, or ""."""


class RequestFastPath:
    """Belongs to one listener's event loop. `grace_s`: how long tokens stay valid without the registry."""

    def __init__(
        self,
        registry_copy: RegistryCopy,
        access_log: AccessLog,
        *,
        grace_s: float,
        guard: Guard | None = None,
    ) -> None:
        self._registry_copy = registry_copy
        self._access_log = access_log
        self._grace_s = grace_s
        self._guard = guard
        self._known: dict[Head, tuple[int, Operation]] = {}

    @property
    def generation(self) -> int:
        """Changes with every token, limit and setting: read it before a request is admitted."""
        generations = self._registry_copy.generations
        return generations[TOKEN] + generations[LIMIT] + generations[SETTING]

    def remember(self, exchange: Exchange, generation: int, operation: Operation) -> None:
        """Let `operation` serve the requests with the head of this one, which was admitted in `generation`."""
        head = head_of(exchange)
        if head is not None and sum(map(len, head)) <= LONGEST_HEAD and not self._access_log.enabled:
            if len(self._known) >= KNOWN_HEADS:
                self._known.clear()
            self._known[head] = generation, operation

    def knows(self, exchange: Exchange) -> bool:
        """Returns whether `accept` may serve the request once its body is complete."""
        return head_of(exchange) in self._known

    def accept(self, exchange: Exchange) -> bool:
        """Serve a complete request. Returns False if the application has to serve it."""
        head = head_of(exchange)
        known = self._known.get(head) if head else None
        if known is None:
            return False
        generation, operation = known
        if generation != self.generation or time.monotonic() > self._registry_copy.seen_at + self._grace_s:
            return False
        if self._guard is not None and self._guard(exchange.headers, exchange.connection.server is None):
            return False
        exchange.operation = operation
        try:
            return operation.submit(exchange)
        except (DuetimeError, ValueError, RecursionError):
            return False  # the application meets the same error, and reports it in its own words
        except Exception:
            log.exception("fast_path_failed")
            return False


def head_of(exchange: Exchange) -> Head | None:
    """Returns None for a request that the application has to serve."""
    credentials, method, target = b"", exchange.method, exchange.url
    for name, value in exchange.headers:
        if name in CREDENTIALS:
            credentials += b"%b: %b\n" % (name, value)
        elif name in UNUSUAL:
            return None
    if method == b"DELETE":
        target, _, job_id = target.rpartition(b"/")
        if not job_id.isalnum() or len(job_id) > LONGEST_ID:
            return None
    return method, target, credentials
