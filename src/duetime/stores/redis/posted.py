"""Posted calls (`stores/direct.py`) to one Redis: the short scripts, sent in the turn of the event loop that asks."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from redis.exceptions import ResponseError

from duetime.model.clock import Clock
from duetime.model.errors import StoreDamaged, StoreUnavailable
from duetime.model.job import Lease, Moved
from duetime.model.names import Queue
from duetime.stores.base import Ask, Push, Pushed, Reserved
from duetime.stores.direct import Done, UnusualQueues
from duetime.stores.redis import one_job
from duetime.stores.redis.link import Link
from duetime.stores.redis.pipe import Argument, Unsent

T = TypeVar("T")


class PostedRedis:
    """Keeps `stores.direct.PostedCalls`."""

    def __init__(self, link: Link, clock: Clock | None, unusual: UnusualQueues) -> None:
        self._link, self._clock, self._unusual = link, clock, unusual

    def push(self, queue: Queue, request: Push, done: Done[Pushed]) -> bool:
        arguments = one_job.push_arguments(request)
        if arguments is None:
            return False
        return self._post("push_one", queue, arguments, lambda answer: one_job.read_pushed(request, answer), done)

    def reserve(self, queue: Queue, ask: Ask, done: Done[Reserved]) -> bool:
        return self._post(
            "reserve_one", queue, (ask.ttr_ms,), lambda answer: one_job.read_reserved(queue, ask, answer), done
        )

    def ack(self, lease: Lease, done: Done[Moved]) -> bool:
        return self._post("ack_one", lease.queue, one_job.ack_arguments(lease), lambda _: one_job.acked(lease), done)

    def _post(
        self,
        script: str,
        queue: Queue,
        arguments: tuple[Argument, ...],
        read: Callable[[Any], T],
        done: Done[T],
    ) -> bool:
        pipe = self._link.only_pipe
        if pipe is None or self._unusual.has(script, queue):
            return False
        now = "" if self._clock is None else self._clock.now_ms()
        packed = one_job.pack_run("EVALSHA", script, queue, (now, *arguments))
        try:
            pipe.post_lone(packed, PostedReply(read, done, lambda: self._unusual.add(script, queue)))
        except Unsent:
            return False
        return True


class PostedReply(Generic[T]):
    """Reads the answer of a script and hands it on."""

    __slots__ = ("_declined", "_done", "_read")

    def __init__(self, read: Callable[[Any], T], done: Done[T], declined: Callable[[], None]) -> None:
        self._read, self._done, self._declined = read, done, declined

    def done(self) -> bool:
        return False

    def set_result(self, result: list[Any], /) -> None:
        answer = result[0]
        if answer is None:
            self._declined()
        if not answer or isinstance(answer, ResponseError):
            self._done(None, None)  # nothing was done
            return
        try:
            read = self._read(answer)
        except Exception as error:  # whatever the store holds, the caller gets an answer
            self._done(None, StoreDamaged(f"Redis answered what cannot be read: {error!r}"))
        else:
            self._done(read, None)

    def set_exception(self, exception: Exception, /) -> None:
        self._done(None, StoreUnavailable(f"no answer from Redis at {exception}", unknown=True))
