"""What the blocking and the async collections share, and what only the blocking ones have.

`collections.py` is generated from `async_collections.py`; what a blocking collection has of its own (a length, `in`,
subscriptions in a thread) is written here.
"""

import asyncio
import json
import logging
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from duetime.client.call import Call
from duetime.client.calls import ClientLeases
from duetime.client.checks import check_callable, error_text
from duetime.client.event_loop import LoopThread
from duetime.client.job_building import encode_json
from duetime.consumer.held_leases import Answer, HeldLeases
from duetime.duties import run_duty
from duetime.model.backoff import Outage
from duetime.model.clock import Duration, duration_ms
from duetime.model.errors import DuetimeError, InvalidRequest
from duetime.model.job import DEFAULT_TTR_MS, Lease

if TYPE_CHECKING:
    from duetime.client.client import Client
    from duetime.client.collections import BlockingQueue, Taken

log = logging.getLogger("duetime.client")

TTR_S = DEFAULT_TTR_MS // 1000
ListenerEvent = Literal["added", "removed"]


class Codec(Protocol):
    def encode(self, value: Any) -> bytes: ...

    def decode(self, data: bytes) -> Any: ...


class JsonCodec:
    """Values as compact JSON with sorted keys, so that equal values are equal bytes."""

    def encode(self, value: Any) -> bytes:
        return encode_json(value, sort_keys=True)

    def decode(self, data: bytes) -> Any:
        return json.loads(data)


def check_codec(codec: Codec) -> Codec:
    for name in ("encode", "decode"):
        check_callable(f"{name} of the codec", getattr(codec, name, None))
    return codec


class AsyncListeners:
    """Functions to call with each value that is added or removed."""

    def __init__(self) -> None:
        self._listeners: dict[str, list[Callable[[Any], None]]] = {"added": [], "removed": []}

    def add_listener(self, event: ListenerEvent, listener: Callable[[Any], None]) -> None:
        """Call `listener` with every value that is added or removed through this object. A taken value is removed when
        it is acknowledged.
        """
        check_callable("listener", listener)
        self._of(event).append(listener)

    def remove_listener(self, event: ListenerEvent, listener: Callable[[Any], None]) -> None:
        """Does nothing if the listener was not added."""
        with suppress(ValueError):
            self._of(event).remove(listener)

    def _of(self, event: ListenerEvent) -> list[Callable[[Any], None]]:
        if event not in ("added", "removed"):
            raise InvalidRequest(f"event must be 'added' or 'removed', got {event!r:.40}")
        return self._listeners[event]

    def _notify(self, event: ListenerEvent, value: Any) -> None:
        for listener in self._listeners[event]:
            listener(value)


class Listeners(AsyncListeners):
    """A blocking queue has consumers in threads, too."""

    _client: Any

    def subscribe(self, consumer: Callable[[Any], None], *, ttr: Duration = TTR_S) -> "Subscription":
        """Call `consumer` with every value, in a thread. The value is acknowledged when it returns, and released when
        it raises.
        """
        return Subscription(self._client, cast("BlockingQueue", self), consumer, ttr)


class AsyncOnly:
    """What an async collection has of its own: `async for value in queue`."""

    def _values(self) -> AsyncIterator[Any]:
        raise NotImplementedError

    def __aiter__(self) -> AsyncIterator[Any]:
        """The values, without taking them."""
        return self._values()


class BlockingOnly:
    """What a blocking collection has of its own: `for value in queue`, `value in queue`, `len(queue)`."""

    def size(self) -> int:
        raise NotImplementedError

    def contains(self, value: Any) -> bool:
        raise NotImplementedError

    def _values(self) -> Iterator[Any]:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        """The values, without taking them."""
        return self._values()

    def __len__(self) -> int:
        return self.size()

    def __bool__(self) -> bool:
        """A collection is one also while it is empty."""
        return True

    def __contains__(self, value: object) -> bool:
        return self.contains(value)


class Subscription:
    """Calls a consumer with one value after the other, in a thread of its own, until it is closed. A second thread
    renews the lease of the value that the consumer works on.
    """

    RELEASE_DELAY_S = 1

    def __init__(
        self, client: "Client", queue: "BlockingQueue", consumer: Callable[[Any], None], ttr: Duration
    ) -> None:
        check_callable("consumer", consumer)
        ttr_ms = duration_ms(ttr)
        self._client = client
        self._queue = queue
        self._consumer = consumer
        self._ttr = ttr
        self._closed = threading.Event()
        self._leases = HeldLeases(lambda: ClientLeases(self._send), ttr_ms, asyncio.create_task)
        self._thread = threading.Thread(target=self._run, name="duetime subscription", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Finish the value in hand and stop."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        outage = Outage()
        with LoopThread("duetime lease renewal") as renewing:
            renewal = renewing.run(self._begin_renewal())
            while not self._closed.is_set():
                try:
                    taken = self._queue.poll("1s", ttr=self._ttr)
                    if taken:
                        renewing.run(self._hold(taken.lease))
                        renewing.run(self._report(taken, self._consume(taken)))
                except (DuetimeError, ValueError) as error:
                    if outage.failed():
                        log.warning("subscription_error", extra={"error": str(error)})
                    self._closed.wait(outage.pause_s)
                else:
                    outage.worked()
            renewing.run(self._end_renewal(renewal))

    def _consume(self, taken: "Taken") -> str:
        """Returns what the consumer failed with, empty if it did not fail."""
        try:
            self._consumer(taken.value)
        except BaseException as error:  # the consumer's code may raise anything, and the thread must go on
            log.exception("consumer_failed")
            return error_text("".join(traceback.format_exception_only(error)).strip())
        return ""

    # --- in the thread that renews

    async def _begin_renewal(self) -> "asyncio.Task[None]":
        return asyncio.create_task(run_duty(self._leases))

    async def _end_renewal(self, renewal: "asyncio.Task[None]") -> None:
        renewal.cancel()
        await asyncio.gather(renewal, return_exceptions=True)

    async def _send(self, call: Call[Any]) -> Any:
        # Nothing else runs in this loop, so the call may block it.
        return self._client.send(call)

    async def _hold(self, lease: Lease) -> None:
        self._leases.add(lease)

    async def _report(self, taken: "Taken", error: str) -> None:
        if error:
            await self._leases.release(taken.lease, delay_ms=self.RELEASE_DELAY_S * 1000, error=error)
            return
        acked: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._leases.ack(taken.lease, acked.set_result)
        if isinstance(answer := await acked, DuetimeError):
            raise answer
