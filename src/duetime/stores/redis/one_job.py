"""The single-job calls (`base.OneJob`) of one Redis, and the short scripts that they run.

The scripts `push_one`, `reserve_one`, `ack_one` and `next_one` leave the same bytes behind as the general scripts. They
decline queues with rules, other priorities, attributes or errors; these queues use the general scripts for a
while (`FastPathBackoff`).
"""

import select
import socket
import ssl
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar, cast

import hiredis
from redis.exceptions import NoScriptError, ResponseError

from duetime.model.clock import Clock
from duetime.model.errors import DuetimeError, LeaseLost, StoreDamaged, StoreUnavailable
from duetime.model.job import Delivery, Event, IfExists, Lease, Moved
from duetime.model.names import Queue
from duetime.stores.base import Ask, Push, Pushed, Reserved, ResultSink, Send
from duetime.stores.one_job import FastPathBackoff, GeneralCalls
from duetime.stores.redis import keys
from duetime.stores.redis.codec import HEADER_BYTES, LEASED, PRIORITIES, RECORD, Record, pack_fence, plain_header
from duetime.stores.redis.connect import SingleAddress, single_address
from duetime.stores.redis.link import Link
from duetime.stores.redis.pipe import Argument, Lost, Unsent, is_read_only, pack, pack_arguments, read_error
from duetime.stores.redis.scripts import hashes, sources

if TYPE_CHECKING:
    from duetime.stores.redis.store import RedisStore

T = TypeVar("T")
Asked = TypeVar("Asked")

REDIAL_S = 1.0
"""After a connection that could not be made, or led to a replica, the general verbs are used for this long."""
INTERRUPT_GRACE_S = 2.0
"""How long an interrupted call still waits for its answer."""


# --- the scripts


@lru_cache(maxsize=4096)
def _head(verb: Literal["EVAL", "EVALSHA"], script: str, queue: Queue) -> bytes:
    """The part of a packed command that all runs of a script on a queue share: five arguments."""
    prefix, known = keys.prefix(queue), hashes() if verb == "EVALSHA" else sources()
    return pack_arguments((verb, known[script], 2, prefix, keys.companion(prefix)))


def pack_run(verb: Literal["EVAL", "EVALSHA"], script: str, queue: Queue, arguments: tuple[Argument, ...]) -> bytes:
    """The command that runs a script on a queue; the first of the arguments is now."""
    return b"*%d%b%b\r\n" % (5 + len(arguments), _head(verb, script, queue), pack_arguments(arguments))


def push_arguments(request: Push) -> tuple[Argument, ...] | None:
    """What `push_one` takes after now. Returns None if it cannot serve this request."""
    if len(request.jobs) != 1 or request.mark or request.if_exists is IfExists.REPLACE:
        return None
    job = request.jobs[0]
    header = plain_header(job)
    return None if header is None else (job.id, job.body, *header, job.delay_ms, job.ttl_ms)


def read_pushed(request: Push, answer: Any) -> Pushed:
    now, born = answer
    job = request.jobs[0]
    return Pushed([Moved(Event.ACCEPTED, job.id, born, 0, now + job.delay_ms)], now)


def read_reserved(queue: Queue, ask: Ask, answer: Any) -> Reserved:
    now, next_at, *found = answer
    if not found:
        return Reserved([[]], next_at, now, [])
    job_id, record, raw = found
    return Reserved(
        [read_deliveries(queue, [(job_id, RECORD.unpack(record), raw)], now + ask.ttr_ms)], next_at, now, []
    )


def read_deliveries(queue: Queue, found: Iterable[tuple[bytes, Any, bytes]], lease_until: int) -> list[Delivery]:
    """Makes deliveries of ids, records and values (header + body)."""
    deliveries: list[Delivery] = []
    for job_id, record, raw in found:
        fields: Record = record
        _, born, attempt, used, tries, priority, due_at, expires_at = fields
        deliveries.append(
            Delivery(
                Lease(queue, job_id.decode(), born, attempt),
                raw[HEADER_BYTES[raw[0]] :],
                due_at,
                lease_until,
                PRIORITIES[priority],
                tries,
                used,
                expires_at,
                {},
            )
        )
    return deliveries


def ack_arguments(lease: Lease) -> tuple[Argument, ...]:
    """What `ack_one` takes after now."""
    return lease.born, pack_fence(LEASED, lease.born, lease.attempt), lease.id


# --- in the event loop


PushAnswers = Sequence[Pushed | DuetimeError]
AckAnswers = Sequence[Moved | LeaseLost | StoreUnavailable | None]


class RedisOneJob:
    """Implements `base.OneJob`: the short scripts, sent in the turn of the event loop that asks. Declined calls use the
    verbs of the `store`.
    """

    def __init__(self, store: "RedisStore", link: Link, clock: Clock | None, url: str) -> None:
        self.store = store
        self._link, self._clock, self._url = link, clock, url
        self.backoff = FastPathBackoff()
        self.general_calls = GeneralCalls()

    def blocking(self) -> "BlockingRedis | None":
        return BlockingRedis.of(self._url, self._clock, self.backoff) if self._url else None

    def push(self, queue: Queue, request: Push, reply: ResultSink[PushAnswers]) -> Send | None:
        arguments = push_arguments(request)
        return None if arguments is None else self._prepare(arguments, PushReply(self, queue, request, reply))

    def reserve(self, queue: Queue, ask: Ask, reply: ResultSink[Reserved]) -> Send | None:
        return self._prepare((ask.ttr_ms,), ReserveReply(self, queue, ask, reply))

    def ack(self, lease: Lease, reply: ResultSink[AckAnswers]) -> Send | None:
        return self._prepare(ack_arguments(lease), AckReply(self, lease.queue, lease, reply))

    def _prepare(self, arguments: tuple[Argument, ...], reply: "ScriptReply[Any, Any]") -> Send | None:
        pipe, script, queue = self._link.only_pipe, reply.script, reply.queue
        if pipe is None or self.backoff.has(script, queue):
            return None
        now = "" if self._clock is None else self._clock.now_ms()
        packed = pack_run("EVALSHA", script, queue, (now, *arguments))

        def send() -> None:
            try:
                pipe.post_lone(packed, reply)
            except Unsent:
                reply.use_general_verb()

        return send


class ScriptReply(Generic[Asked, T]):
    """Gets the answer of a script. If the script declined, the general verb answers."""

    __slots__ = ("_reply", "asked", "one_job", "queue")

    script: ClassVar[str]

    def __init__(self, one_job: RedisOneJob, queue: Queue, asked: Asked, reply: ResultSink[T]) -> None:
        self.one_job, self.queue, self.asked, self._reply = one_job, queue, asked, reply

    def read(self, answer: Any) -> T:
        raise NotImplementedError

    def general(self) -> Coroutine[Any, Any, T]:
        raise NotImplementedError

    def use_general_verb(self) -> None:
        self.one_job.general_calls.run(self.general(), self._reply)

    def done(self) -> bool:
        return False

    def set_result(self, result: list[Any], /) -> None:
        answer = result[0]
        if answer is None:
            self.one_job.backoff.add(self.script, self.queue)
        if not answer or isinstance(answer, ResponseError):  # nothing was done
            self.use_general_verb()
            return
        try:
            read = self.read(answer)
        except Exception as error:  # whatever the store holds, the caller gets an answer
            self._reply.set_exception(StoreDamaged(f"Redis answered what cannot be read: {error!r}"))
        else:
            self._reply.set_result(read)

    def set_exception(self, exception: Exception, /) -> None:
        self._reply.set_exception(StoreUnavailable(f"no answer from Redis at {exception}", unknown=True))


class PushReply(ScriptReply[Push, PushAnswers]):
    __slots__ = ()
    script = "push_one"

    def read(self, answer: Any) -> PushAnswers:
        return [read_pushed(self.asked, answer)]

    def general(self) -> Coroutine[Any, Any, PushAnswers]:
        return self.one_job.store.push(self.queue, [self.asked])


class ReserveReply(ScriptReply[Ask, Reserved]):
    __slots__ = ()
    script = "reserve_one"

    def read(self, answer: Any) -> Reserved:
        return read_reserved(self.queue, self.asked, answer)

    def general(self) -> Coroutine[Any, Any, Reserved]:
        return self.one_job.store.reserve(self.queue, [self.asked])


class AckReply(ScriptReply[Lease, AckAnswers]):
    """An ack whose answer was lost is repeated: it is idempotent."""

    __slots__ = ()
    script = "ack_one"

    def read(self, answer: Any) -> AckAnswers:
        return [self.asked.acked()]

    def general(self) -> Coroutine[Any, Any, AckAnswers]:
        return self.one_job.store.ack_general(self.asked, after_a_loss=False)

    def set_exception(self, exception: Exception, /) -> None:
        again = self.one_job.store.ack_general(self.asked, after_a_loss=True)
        self.one_job.general_calls.run(again, self._reply)


# --- in other threads


class BlockingPipe:
    """A connection with one request at a time. Cannot be used again after an error."""

    def __init__(self, address: SingleAddress) -> None:
        """Connect and log in. Raises OSError, Unsent."""
        self._name = f"{address.host}:{address.port}"
        self._reader = hiredis.Reader(replyError=cast(Callable[[str], Exception], read_error))
        self._poll = select.poll()
        plain = socket.create_connection((address.host, address.port), address.timeout_s)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            tls = address.login.tls
            self._socket = tls.wrap_socket(plain, server_hostname=address.host) if tls else plain
            self._poll.register(self._socket.fileno(), select.POLLIN)
            for command in address.login.commands():
                self.send(pack(command))
                if isinstance(answer := self.receive(), Exception):
                    raise Unsent(f"{self._name}: {answer}")
        except BaseException:
            plain.close()
            raise

    def has_ended(self) -> bool:
        """An idle connection that has something to read has ended, unless TLS sent something of its own."""
        if not self._poll.poll(0):
            return False
        if not isinstance(self._socket, ssl.SSLSocket):
            return True
        timeout = self._socket.gettimeout()
        try:
            self._socket.settimeout(0)
            self._socket.recv(1)
        except ssl.SSLWantReadError:
            self._socket.settimeout(timeout)
            return False
        except OSError:
            pass
        return True

    def send(self, packed: bytes) -> None:
        """Raises Unsent: Redis runs no command of which a part is missing."""
        try:
            self._socket.sendall(packed)
        except OSError as error:
            raise Unsent(f"{self._name}: {error}") from error

    def receive(self) -> Any:
        """The next answer; an error that Redis answers is a value. Raises Lost."""
        reader = self._reader
        try:
            while (answer := reader.gets()) is False:
                if not (data := self._socket.recv(65_536)):
                    raise Lost(f"{self._name}: the connection has ended")
                reader.feed(data)
        except (OSError, hiredis.ProtocolError) as error:
            raise Lost(f"{self._name}: {error}") from error
        return answer

    def receive_late(self) -> Any:
        """As `receive`, for a caller that was interrupted in it."""
        self._socket.settimeout(INTERRUPT_GRACE_S)
        return self.receive()

    def close(self) -> None:
        self._socket.close()


class BlockingRedis:
    """Implements `base.BlockingOneJob`: the short scripts over a blocking socket in the caller's own thread.

    An error that Redis answers, a connection that cannot be made, and a request that was not sent are all left to the
    general verbs, which know redirections, repetitions and what each error means.
    """

    def __init__(self, address: SingleAddress, clock: Clock | None, backoff: FastPathBackoff) -> None:
        self._address, self._clock, self._backoff = address, clock, backoff
        self._pipe: BlockingPipe | None = None
        self._dial_at = 0.0

    @classmethod
    def of(cls, url: str, clock: Clock | None, backoff: FastPathBackoff) -> "BlockingRedis | None":
        """Returns None for a Sentinel's or a Cluster's URL."""
        address = single_address(url)
        return cls(address, clock, backoff) if address else None

    def push(self, queue: Queue, request: Push) -> Pushed | None:
        arguments = push_arguments(request)
        if arguments is None or not (answer := self._run("push_one", queue, arguments)):
            return None
        return read_pushed(request, answer)

    def reserve(self, queue: Queue, ask: Ask, orphan: Callable[[Delivery], None]) -> Reserved | None:
        return self._reserve("reserve_one", queue, (ask.ttr_ms,), ask, orphan)

    def ack_and_reserve(self, lease: Lease, ask: Ask, orphan: Callable[[Delivery], None]) -> Reserved | None:
        return self._reserve("next_one", lease.queue, (*ack_arguments(lease), ask.ttr_ms), ask, orphan)

    def _reserve(
        self, script: str, queue: Queue, arguments: tuple[Argument, ...], ask: Ask, orphan: Callable[[Delivery], None]
    ) -> Reserved | None:
        def give_to_orphan(answer: Any) -> None:
            for delivery in read_reserved(queue, ask, answer).deliveries[0]:
                orphan(delivery)

        answer = self._run(script, queue, arguments, give_to_orphan)
        return None if answer is None else read_reserved(queue, ask, answer)

    def ack(self, lease: Lease) -> Moved | None:
        answer = self._run("ack_one", lease.queue, ack_arguments(lease))
        return lease.acked() if answer else None

    def close(self) -> None:
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            pipe.close()

    def _run(
        self,
        script: str,
        queue: Queue,
        arguments: tuple[Argument, ...],
        late: Callable[[Any], None] | None = None,
    ) -> Any:
        """The script's answer; None if nothing was done. `late` gets the answer for a caller that was interrupted.

        Raises StoreUnavailable if the answer was lost.
        """
        if self._backoff.has(script, queue):
            return None
        with_now = ("" if self._clock is None else self._clock.now_ms(), *arguments)
        pipe = self._connected()
        if pipe is None:
            return None
        try:
            pipe.send(pack_run("EVALSHA", script, queue, with_now))
            answer = pipe.receive()
            if isinstance(answer, NoScriptError):  # nothing was done
                pipe.send(pack_run("EVAL", script, queue, with_now))
                answer = pipe.receive()
        except Unsent:
            self.close()
            return None
        except Lost as lost:
            self.close()
            raise StoreUnavailable(f"no answer from Redis at {lost}", unknown=True) from lost
        except BaseException:  # the caller was interrupted, perhaps by Ctrl-C
            with suppress(Lost):
                if late and not isinstance(answer := pipe.receive_late(), ResponseError) and answer is not None:
                    late(answer)
            self.close()
            raise
        if answer is None:
            self._backoff.add(script, queue)
        elif is_read_only(answer):
            self.close()  # the next connection may lead to the new primary
            self._dial_at = time.monotonic() + REDIAL_S
        return None if isinstance(answer, ResponseError) else answer

    def _connected(self) -> BlockingPipe | None:
        if self._pipe is not None and self._pipe.has_ended():
            self.close()
        if self._pipe is None and time.monotonic() >= self._dial_at:
            try:
                self._pipe = BlockingPipe(self._address)
            except (OSError, Unsent, Lost):
                self._dial_at = time.monotonic() + REDIAL_S
        return self._pipe
