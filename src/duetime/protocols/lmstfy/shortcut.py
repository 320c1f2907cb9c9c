"""Publish, consume and acknowledge without a task: the short way of the three requests that a server is busy with.

A request takes it if an equal one (same method, target and token; for an ack the same queue) was admitted and served by
the application a moment ago, and the registry has not changed since: then its token, limits and parameters are
known. Everything else, and whatever is unusual about a request, goes to the application (`app.py`), which answers the
same.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import NamedTuple

from duetime.engine.requests import AckByIdRequest, PushRequest, ReserveRequest
from duetime.http.service import WholeRequest
from duetime.model.errors import JobExists
from duetime.model.job import Delivery, IfExists, Moved, NewJob
from duetime.model.logs import REQUEST_ID
from duetime.model.names import Queue
from duetime.protocols.lmstfy.call import LmstfyTools
from duetime.protocols.lmstfy.consumers import LOOKED, NO_JOB, count_ack, delivered_answer
from duetime.protocols.lmstfy.ids import make_id
from duetime.protocols.lmstfy.options import LmstfyParts
from duetime.protocols.lmstfy.params import Consuming, Publishing
from duetime.protocols.lmstfy.producers import published_answer
from duetime.protocols.lmstfy.wire import LmstfyAnswer
from duetime.stores.base import Push

log = logging.getLogger("duetime.lmstfy")

KNOWN_LINES = 1024
LONGEST_LINE = 1024
"""How many lines are remembered, and the most bytes of one."""
LONGEST_ID = 128
JOB = b"/job/"
ACKED = LmstfyAnswer(204)

Line = tuple[bytes, bytes, bytes]
"""Method, target and token of a request; of an ack's target only what stands before the job."""
Asked = Publishing | Consuming | None
"""What the query asks for; None for an ack, which has no query."""
Failed = Callable[[Exception], LmstfyAnswer]
"""The answer for an error, which it may log."""


class KnownLine(NamedTuple):
    """What a line says. `route` is the request's place in the metrics: pool, namespace, api and method."""

    version: int
    pool: str
    queue: Queue
    asked: Asked
    route: tuple[str, str, str, str]


def line_of(request: WholeRequest) -> Line | None:
    """None for a request that has to go to the application in any case."""
    token, method, target = b"", request.method, request.url
    for name, value in request.headers:
        if name == b"x-token":
            token = token or value
        elif name == b"enable-job-version":
            return None
    if method == b"DELETE":
        target, job, name = target.rpartition(JOB)
        if not job or not name.isalnum() or len(name) > LONGEST_ID:
            return None
    return method, target, token


class LmstfyShortcut:
    """`failed` is the application's answer for an error."""

    def __init__(self, parts: LmstfyParts, tools: LmstfyTools, failed: Failed) -> None:
        self.tools = tools
        self.failed = failed
        self.pools = parts.pools
        self._copy = parts.registry_copy
        self._access_log = parts.access_log
        self._grace_s = parts.tokens.grace_s
        self._lines: dict[Line, KnownLine] = {}

    def learn(self, request: WholeRequest, known: KnownLine) -> None:
        """The application has served this request; the next one like it may take the shortcut."""
        line = line_of(request)
        if line is not None and sum(map(len, line)) <= LONGEST_LINE:
            if len(self._lines) >= KNOWN_LINES:
                self._lines.clear()
            self._lines[line] = known

    @property
    def version(self) -> int:
        """Of the registry's copy: what was learned with another one counts no more."""
        return self._copy.version

    def take(self, request: WholeRequest) -> bool:
        """Serve the request if it can be served here."""
        line = line_of(request)
        known = self._lines.get(line) if line else None
        if known is None:
            return False
        copy = self._copy
        if known.version != copy.version or copy.age_s() > self._grace_s or self._access_log.enabled:
            return False
        asked = known.asked
        if asked is None:
            return self._acknowledge(request, known)
        if isinstance(asked, Consuming):
            reply = _Consume(self, request, known)
            self.pools.engine(known.pool).submit(ReserveRequest(known.queue, asked.ttr * 1000), reply)
            return True
        return self._publish(request, known, asked)

    def _acknowledge(self, request: WholeRequest, known: KnownLine) -> bool:
        job_id = request.url.rpartition(JOB)[2].decode("ascii")
        reply = _Acknowledge(self, request, known)
        self.pools.engine(known.pool).submit(AckByIdRequest(known.queue, (job_id,)), reply)
        return True

    def _publish(self, request: WholeRequest, known: KnownLine, asked: Publishing) -> bool:
        if request.received > self.tools.max_body:
            return False
        _Publish(self, request, known, asked).put()
        return True


class _Reply:
    """One request on its way; it is what the engine gives the answer to."""

    __slots__ = ("_began", "_known", "_request", "_shortcut")

    def __init__(self, shortcut: LmstfyShortcut, request: WholeRequest, known: KnownLine) -> None:
        self._shortcut = shortcut
        self._request = request
        self._known = known
        self._began = time.perf_counter()

    def done(self) -> bool:
        """Never: a request whose client has gone is served to its end, as by the application."""
        return False

    def set_exception(self, exception: Exception, /) -> None:
        context = copy_context()
        context.run(REQUEST_ID.set, self._request.request_id)
        self._finish(context.run(self._shortcut.failed, exception))

    def _finish(self, answer: LmstfyAnswer) -> bool:
        """False if the client has gone."""
        status, body, headers = answer
        reached = self._request.finish(status, () if status == ACKED.status else tuple(headers), body)
        self._shortcut.tools.metrics.finished(self._known.route, status, time.perf_counter() - self._began)
        return reached


class _Publish(_Reply):
    __slots__ = ("_asked", "_id", "_is_last")

    def __init__(self, shortcut: LmstfyShortcut, request: WholeRequest, known: KnownLine, asked: Publishing) -> None:
        super().__init__(shortcut, request, known)
        self._asked = asked
        self._is_last = False

    def put(self) -> None:
        asked, known, shortcut = self._asked, self._known, self._shortcut
        self._id = make_id(shortcut.tools.ids, asked.delay, version_1=False)
        body = self._request.body()
        job = NewJob(self._id, body, delay_ms=asked.delay * 1000, ttl_ms=asked.ttl * 1000, tries=asked.tries)
        request = PushRequest(known.queue, Push((job,), IfExists.ERROR))
        shortcut.pools.engine(known.pool).submit(request, self)

    def set_result(self, result: object, /) -> None:
        known = self._known
        self._shortcut.tools.metrics.published(known.pool, known.queue, 1, delayed=self._asked.delay > 0)
        self._finish(published_answer(self._id))

    def set_exception(self, exception: Exception, /) -> None:
        """Two processes may draw the same id in one millisecond; then it tries once more."""
        if isinstance(exception, JobExists) and not self._is_last:
            self._is_last = True
            try:
                self.put()
            except Exception as error:
                super().set_exception(error)
        else:
            super().set_exception(exception)


class _Consume(_Reply):
    __slots__ = ()

    def set_result(self, result: list[Delivery], /) -> None:
        asked, known = self._known.asked, self._known
        assert isinstance(asked, Consuming)
        if result:
            answer = delivered_answer(self._shortcut.tools, known.pool, result, asked)
            if not self._finish(answer):
                self._shortcut.pools.engine(known.pool).give_back_later(result)
        elif asked.timeout and not self._request.gone:
            self._request.scope[LOOKED] = True
            self._request.start()
        else:
            self._finish(NO_JOB)


class _Acknowledge(_Reply):
    __slots__ = ()

    def set_result(self, result: Sequence[Moved | None], /) -> None:
        count_ack(self._shortcut.tools, self._known.pool, self._known.queue, result[0])
        self._finish(ACKED)
