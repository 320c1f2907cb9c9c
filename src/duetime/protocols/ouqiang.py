"""ouqiang/delay-queue's HTTP protocol, for its existing clients: push, pop, finish, delete and get, on its own port.

Any method, a JSON body, and always status 200: what went wrong is in `code` and `message`. With a token set, a request
must carry it, as `Authorization: Bearer` or as `?token=`; the original knows none.

Its ids are global: a push replaces a job of the same id also under another topic, finish and get name an id alone. So
its jobs live in one namespace of their own, a queue per topic, and an id is looked up where it was last seen and then
in the other queues of that namespace. A job carries its ttr as an attribute; its tries are unlimited unless the
settings say otherwise.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from starlette.types import Receive, Scope, Send

from duetime.engine import Engine
from duetime.http.exchange import ClientGone
from duetime.model.errors import DuetimeError, InvalidId, InvalidName, InvalidRequest, LeaseLost, Unauthorized
from duetime.model.job import Delivery, IfExists, Job, NewJob
from duetime.model.names import Queue, check_id, check_queue
from duetime.protocols.asgi import exchange_of, read_body, send_answer
from duetime.protocols.tokens import bearer, same_secret, token_in_query

MAX_DELAY_S = 2**31
MAX_TTR_S = 86_400


def not_empty(name: str, text: str) -> str:
    """The text, trimmed. Raises InvalidRequest if nothing is left."""
    if not (trimmed := text.strip()):
        raise InvalidRequest(f"{name} must not be empty")
    return trimmed


class PushMessage(Struct):
    """`delay` and `ttr` are seconds."""

    topic: str = ""
    id: str = ""
    delay: int = 0
    ttr: int = 0
    body: str = ""

    def checked(self, namespace: str) -> "PushMessage":
        """A trimmed copy, checked against the ranges of the protocol and the rules for names. Raises InvalidRequest."""
        job_id, topic = not_empty("id", self.id), not_empty("topic", self.topic)
        push = PushMessage(topic, job_id, self.delay, self.ttr, self.body.strip())
        if not 1 <= push.delay <= MAX_DELAY_S:
            raise InvalidRequest(f"delay must be 1 to {MAX_DELAY_S} seconds")
        if not 1 <= push.ttr <= MAX_TTR_S:
            raise InvalidRequest(f"ttr must be 1 to {MAX_TTR_S} seconds")
        check_id(push.id)
        check_queue(namespace, push.topic)
        return push


class Pop(Struct):
    """One topic, or several with commas between them: the first has priority."""

    topic: str = ""


class Named(Struct):
    id: str = ""


class Popped(Struct, frozen=True):
    id: str
    body: str


class FoundJob(Struct, frozen=True):
    """`delay` is the unix second at which the job is due."""

    topic: str
    id: str
    delay: int
    ttr: int
    body: str


def parse(body: bytes, kind: type[Struct]) -> Any:
    """Raises InvalidRequest with the place of the error."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"request cannot be read: {error}") from None


def answer(code: int, message: str, data: Popped | FoundJob | None = None) -> bytes:
    return msgspec.json.encode({"code": code, "message": message, "data": data})


log = logging.getLogger("duetime.ouqiang")

TTR = "ttr"
DEFAULT_TTR_S = 60
HANDOVER_MS = 30_000
"""The lease between the reserve and the renewal for the job's own ttr."""
POP_WAIT_MS = 178_000
MAX_TOPICS = 1000
"""Topics that one pop may name."""
MEMORY = 100_000
"""Ids whose queue is remembered."""


class OuqiangJobs:
    """`engine` is called for every request, because its pool may be closed and opened again."""

    def __init__(self, engine: Callable[[], Engine], namespace: str, *, tries: int = 0) -> None:
        self._engine = engine
        self._namespace = namespace
        self._tries = tries
        self._seen: OrderedDict[str, Queue] = OrderedDict()

    async def push(self, push: PushMessage) -> None:
        """Pushes the new job before it removes an old one of the same id."""
        queue = check_queue(self._namespace, push.topic)
        job = NewJob(
            push.id,
            push.body.encode(),
            delay_ms=push.delay * 1000,
            tries=self._tries,
            attributes={TTR: str(push.ttr)},
        )
        engine = self._engine()
        await engine.push(queue, [job], if_exists=IfExists.REPLACE)
        self._remember(push.id, queue)
        others = [one for one in await self._queues() if one != queue]
        await asyncio.gather(*(engine.cancel(one, [push.id]) for one in others))

    async def pop(self, topics: str, wait_ms: int = POP_WAIT_MS) -> tuple[Delivery, Popped] | None:
        """A topic that cannot be the name of a queue never has a job. Raises InvalidRequest for too many topics."""
        queues = self._named(topics)
        engine = self._engine()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        while (left := deadline - loop.time()) > 0:
            if not queues:
                await asyncio.sleep(left)
                continue
            found = await engine.reserve(queues, ttr_ms=HANDOVER_MS, wait_ms=max(1, int(left * 1000)))
            for delivery in found:
                try:
                    await engine.extend(delivery.lease, _ttr(delivery) * 1000)
                except LeaseLost:
                    continue
                except BaseException:
                    engine.give_back_later([delivery])
                    raise
                self._remember(delivery.lease.id, delivery.lease.queue)
                return delivery, Popped(delivery.lease.id, delivery.body.decode(errors="replace"))
        return None

    async def finish(self, job_id: str) -> None:
        """Removes the job from the queue that it is in. An unknown id is no error."""
        engine = self._engine()
        first = self._seen.pop(job_id, None)
        if first is not None:
            [moved] = await engine.ack_by_id(first, [job_id])
            if moved:
                return
        others = [queue for queue in await self._queues() if queue != first]
        await asyncio.gather(*(engine.ack_by_id(queue, [job_id]) for queue in others))

    async def get(self, job_id: str) -> FoundJob | None:
        first = self._seen.get(job_id)
        order = [first] if first else []
        order += [queue for queue in await self._queues() if queue != first]
        store = self._engine().store
        for [job] in await asyncio.gather(*(store.get(queue, [job_id]) for queue in order)):
            if job is not None:
                return _found(job)
        return None

    def _named(self, topics: str) -> list[Queue]:
        queues: list[Queue] = []
        names = topics.split(",", MAX_TOPICS)
        if len(names) > MAX_TOPICS:
            raise InvalidRequest(f"topic must name at most {MAX_TOPICS} topics")
        for topic in dict.fromkeys(names):
            try:
                queues.append(check_queue(self._namespace, topic.strip()))
            except InvalidName:
                continue
        return queues

    async def _queues(self) -> Sequence[Queue]:
        return await self._engine().store.queues(self._namespace)

    def _remember(self, job_id: str, queue: Queue) -> None:
        self._seen[job_id] = queue
        self._seen.move_to_end(job_id)
        if len(self._seen) > MEMORY:
            self._seen.popitem(last=False)


def _ttr(job: Delivery | Job) -> int:
    """Reads the attribute `ttr`. Jobs of other protocols have none, or any text."""
    text = job.attributes.get(TTR, "")
    if not (text.isascii() and text.isdigit()):
        return DEFAULT_TTR_S
    digits = text.lstrip("0")
    if not digits:
        return DEFAULT_TTR_S
    return MAX_TTR_S if len(digits) > len(str(MAX_TTR_S)) else min(int(digits), MAX_TTR_S)


def _found(job: Job) -> FoundJob:
    return FoundJob(job.queue.name, job.id, job.due_at // 1000, _ttr(job), job.body.decode(errors="replace"))


FRAME = 4096
"""Bytes allowed for the JSON around a body."""
NOT_FOUND = b"404 page not found\n"
HEADERS = [(b"content-type", b"text/plain; charset=utf-8")]


class OuqiangApp:
    """An ASGI application."""

    def __init__(
        self, engine: Callable[[], Engine], namespace: str, *, token: str = "", tries: int = 0, max_body: int
    ) -> None:
        """`tries`: how often a job is popped before it is a dead letter; 0 is unlimited, as in the original."""
        self._engine = engine
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
        delivered: list[Delivery] = []
        scope["duetime.delivered"] = delivered
        status, body = (404, NOT_FOUND) if handler is None else (200, await self._answer(handler, scope, receive))
        try:
            await send_answer(scope, send, status, HEADERS, body)
        except OSError:
            if delivered:
                await self._engine().give_back_all(delivered)

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
        found = await exchange_of(scope).park(self._jobs.pop(pop.topic), None)
        if found is None:
            return answer(0, "no job")
        delivery, popped = found
        scope["duetime.delivered"].append(delivery)
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
    """Returns None for an invalid id: this protocol treats it as an unknown id, which is not an error."""
    job_id = not_empty("id", named.id)
    try:
        return check_id(job_id)
    except InvalidId:
        return None
