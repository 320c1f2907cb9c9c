"""Direct calls (`stores/direct.py`) to one Redis: the short scripts over a blocking socket in the caller's own thread.

An error that Redis answers, a connection that cannot be made, and a request that was not sent are all left to the
general way, which knows redirections, repetitions and what each error means.
"""

import select
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import hiredis
from redis.exceptions import NoScriptError, ResponseError

from duetime.model.clock import Clock
from duetime.model.errors import StoreUnavailable
from duetime.model.job import Lease, Moved
from duetime.model.names import Queue
from duetime.stores.base import Ask, Push, Pushed, Reserved
from duetime.stores.direct import Orphan, UnusualQueues
from duetime.stores.redis import one_job
from duetime.stores.redis.connect import SingleAddress, single_address
from duetime.stores.redis.pipe import Argument, Lost, Unsent, is_read_only, pack, read_error

REDIAL_S = 1.0
"""After a connection that could not be made, or led to a replica, calls go the general way for so long."""
FAREWELL_S = 2.0
"""How long an interrupted call still waits for its answer."""


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
        self._socket.settimeout(FAREWELL_S)
        return self.receive()

    def close(self) -> None:
        self._socket.close()


class DirectRedis:
    """Keeps `stores.direct.DirectCalls`."""

    def __init__(self, address: SingleAddress, clock: Clock | None, unusual: UnusualQueues) -> None:
        self._address, self._clock, self._unusual = address, clock, unusual
        self._pipe: BlockingPipe | None = None
        self._dial_at = 0.0

    @classmethod
    def of(cls, url: str, clock: Clock | None, unusual: UnusualQueues) -> "DirectRedis | None":
        """None for a Sentinel's or a Cluster's URL."""
        address = single_address(url)
        return cls(address, clock, unusual) if address else None

    def push(self, queue: Queue, request: Push) -> Pushed | None:
        arguments = one_job.push_arguments(request)
        if arguments is None or not (answer := self._run("push_one", queue, arguments)):
            return None
        return one_job.read_pushed(request, answer)

    def reserve(self, queue: Queue, ask: Ask, orphan: Orphan) -> Reserved | None:
        return self._reserve("reserve_one", queue, (ask.ttr_ms,), ask, orphan)

    def ack_and_reserve(self, lease: Lease, ask: Ask, orphan: Orphan) -> Reserved | None:
        return self._reserve("next_one", lease.queue, (*one_job.ack_arguments(lease), ask.ttr_ms), ask, orphan)

    def _reserve(
        self, script: str, queue: Queue, arguments: tuple[Argument, ...], ask: Ask, orphan: Orphan
    ) -> Reserved | None:
        def take_back(answer: Any) -> None:
            for delivery in one_job.read_reserved(queue, ask, answer).deliveries[0]:
                orphan(delivery)

        answer = self._run(script, queue, arguments, take_back)
        return None if answer is None else one_job.read_reserved(queue, ask, answer)

    def ack(self, lease: Lease) -> Moved | None:
        answer = self._run("ack_one", lease.queue, one_job.ack_arguments(lease))
        return one_job.acked(lease) if answer else None

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
        if self._unusual.has(script, queue):
            return None
        with_now = ("" if self._clock is None else self._clock.now_ms(), *arguments)
        pipe = self._connected()
        if pipe is None:
            return None
        try:
            pipe.send(one_job.pack_run("EVALSHA", script, queue, with_now))
            answer = pipe.receive()
            if isinstance(answer, NoScriptError):  # nothing was done
                pipe.send(one_job.pack_run("EVAL", script, queue, with_now))
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
            self._unusual.add(script, queue)
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
