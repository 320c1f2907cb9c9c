"""The five paths of ouqiang/delay-queue, for its existing clients.

Any method, a JSON body, and always status 200: what went wrong is in `code` and `message`. With a token set, a request
must carry it, as `Authorization: Bearer` or as `?token=`; the original knows none.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping

from starlette.types import Receive, Scope, Send

from duetime.engine import Engine
from duetime.http.exchange import ClientGone
from duetime.model.errors import DuetimeError, InvalidId, Unauthorized
from duetime.model.job import Delivery
from duetime.model.names import check_id
from duetime.protocols.asgi import read_body, send_answer
from duetime.protocols.ouqiang.jobs import OuqiangJobs
from duetime.protocols.ouqiang.messages import Named, Pop, PushMessage, answer, not_empty, parse
from duetime.protocols.parking import park
from duetime.protocols.tokens import bearer, same_secret, token_in_query

log = logging.getLogger("duetime.ouqiang")

FRAME = 4096
"""What the JSON around a body may take."""
NOT_FOUND = b"404 page not found\n"
HEADERS = [(b"content-type", b"text/plain; charset=utf-8")]


class OuqiangApp:
    """An ASGI application."""

    def __init__(
        self, engine: Callable[[], Engine], namespace: str, *, token: str = "", tries: int = 0, max_body: int
    ) -> None:
        """`tries`: how often a job is popped before it is a dead letter; 0: for ever, as in the original."""
        self._jobs = OuqiangJobs(engine, namespace, tries=tries)
        self._namespace = namespace
        self._token = token
        self._limit = 6 * max_body + FRAME  # in JSON a byte of text may take six
        self._paths: Mapping[str, Callable[[Scope, Receive, bytes], Awaitable[bytes]]] = {
            "/push": self._push,
            "/pop": self._pop,
            "/finish": self._finish,
            "/delete": self._finish,
            "/get": self._get,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        handler = self._paths.get(scope["path"])
        taken: list[Delivery] = []
        scope["duetime.taken"] = taken
        status, body = (404, NOT_FOUND) if handler is None else (200, await self._answer(handler, scope, receive))
        try:
            await send_answer(scope, send, status, HEADERS, body)
        except OSError:
            for delivery in taken:
                await self._jobs.give_back(delivery)

    async def _answer(
        self, handler: Callable[[Scope, Receive, bytes], Awaitable[bytes]], scope: Scope, receive: Receive
    ) -> bytes:
        try:
            self._check_token(scope)
            body = await read_body(scope, receive, self._limit)
            return await handler(scope, receive, body)
        except DuetimeError as error:
            return answer(1, error.message)
        except ClientGone:
            return b""
        except Exception:
            log.exception("request_crashed")
            return answer(1, "internal error")

    def _check_token(self, scope: Scope) -> None:
        if not self._token:
            return
        given = bearer(dict(scope["headers"])) or token_in_query(scope["query_string"])
        if not same_secret(given, self._token):
            raise Unauthorized

    async def _push(self, scope: Scope, receive: Receive, body: bytes) -> bytes:
        push: PushMessage = parse(body, PushMessage)
        await self._jobs.push(push.checked(self._namespace))
        return answer(0, "pushed")

    async def _pop(self, scope: Scope, receive: Receive, body: bytes) -> bytes:
        pop: Pop = parse(body, Pop)
        not_empty("topic", pop.topic)
        found = await park(scope, receive, self._jobs.pop(pop.topic), None)
        if found is None:
            return answer(0, "no job")
        delivery, popped = found
        scope["duetime.taken"].append(delivery)
        return answer(0, "popped", popped)

    async def _finish(self, scope: Scope, receive: Receive, body: bytes) -> bytes:
        named: Named = parse(body, Named)
        if (job_id := _id(named)) is not None:
            await self._jobs.finish(job_id)
        return answer(0, "done")

    async def _get(self, scope: Scope, receive: Receive, body: bytes) -> bytes:
        named: Named = parse(body, Named)
        job_id = _id(named)
        return answer(0, "found", None if job_id is None else await self._jobs.get(job_id))


def _id(named: Named) -> str | None:
    """None for an id that no job can have. This protocol treats it as an unknown id, which is no error."""
    job_id = not_empty("id", named.id)
    try:
        return check_id(job_id)
    except InvalidId:
        return None
