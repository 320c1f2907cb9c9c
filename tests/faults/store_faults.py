"""A store that fails on demand: a thin wrapper of a real one.

    store = FaultyStore(MemoryStore())
    store.down()                          # every verb raises StoreUnavailable at once
    store.fail("reap", error=error)       # a reap raises that error at once
    store.slow("push", request=0.5)       # a push reaches the store half a second later
    store.slow("reserve", answer=gate)    # a reserve takes effect; its answer waits for the event
    store.lose_answers("ack")             # an ack takes effect; its caller gets StoreUnavailable(unknown=True)
    store.down_after(1, "ack")            # one more ack is served, then it is down
    store.break_wakeups()                 # listeners lose their connection, and may come again
    store.heal()

Each switch takes verbs, or none for all of them. `calls` is what was asked of the store, failed calls included.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, ParamSpec, TypeVar

from duetime.model.errors import DuetimeError, StoreUnavailable
from duetime.stores.base import Store, Wake
from duetime.stores.forwarding import ForwardingStore

P = ParamSpec("P")
T = TypeVar("T")

VERBS = [name for name in vars(Store) if not name.startswith("_") and name not in ("registry", "close", "check")]

Pause = float | asyncio.Event | Callable[[], float]
"""Seconds, what to wait for, or seconds to be drawn anew for each call."""


class Call(NamedTuple):
    verb: str
    args: tuple[Any, ...]
    options: dict[str, Any]


@dataclass
class Fault:
    down: bool = False
    error: DuetimeError | None = None
    lost: bool = False
    silent: bool = False
    request: Pause = 0.0
    answer: Pause = 0.0
    left: int | None = None


class FaultyStore(ForwardingStore):
    """Whatever is not a verb goes straight through."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.calls: list[Call] = []
        self._faults = {verb: Fault() for verb in VERBS}
        self._listeners: dict[asyncio.Queue[Wake | DuetimeError], None] = {}

    # --- the switches

    def down(self, *verbs: str) -> None:
        for fault in self._chosen(verbs):
            fault.down = True
        if "wakeups" in (verbs or VERBS):
            self.break_wakeups()

    def down_after(self, calls: int, *verbs: str) -> None:
        for fault in self._chosen(verbs):
            fault.left = calls

    def fail(self, *verbs: str, error: DuetimeError) -> None:
        for fault in self._chosen(verbs):
            fault.error = error

    def slow(self, *verbs: str, request: Pause = 0.0, answer: Pause = 0.0) -> None:
        for fault in self._chosen(verbs):
            fault.request, fault.answer = request, answer

    def lose_answers(self, *verbs: str) -> None:
        for fault in self._chosen(verbs):
            fault.lost = True

    def silence_wakeups(self) -> None:
        """Listeners stay connected and hear nothing."""
        self._faults["wakeups"].silent = True

    def break_wakeups(self) -> None:
        for listener in self._listeners:
            listener.put_nowait(StoreUnavailable("the connection broke"))

    def heal(self, *verbs: str) -> None:
        self._faults.update({verb: Fault() for verb in verbs or VERBS})

    def _chosen(self, verbs: Sequence[str]) -> list[Fault]:
        return [self._faults[verb] for verb in verbs or VERBS]

    # --- the protocol

    async def _call(self, verb: str, call: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T:
        if verb not in self._faults:
            return await call(*args, **options)
        self.calls.append(Call(verb, args, options))
        await _pause(self._faults[verb].request)
        self._require_up(verb)
        result = await call(*args, **options)
        await _pause(self._faults[verb].answer)
        fault = self._faults[verb]
        if fault.lost or fault.down:
            raise StoreUnavailable(f"the answer to {verb} was lost", unknown=True)
        return result

    def _require_up(self, verb: str) -> None:
        fault = self._faults[verb]
        if fault.left is not None:
            fault.down, fault.left = not fault.left, max(fault.left - 1, 0)
        if fault.down:
            raise StoreUnavailable("the store is down")
        if error := self._faults[verb].error:
            raise error

    async def wakeups(self) -> AsyncIterator[Wake]:
        self._require_up("wakeups")
        heard: asyncio.Queue[Wake | DuetimeError] = asyncio.Queue()

        async def listen() -> None:
            async for wake in self.inner.wakeups():
                heard.put_nowait(wake)

        self._listeners[heard] = None
        task = asyncio.create_task(listen())
        try:
            while not isinstance(wake := await heard.get(), DuetimeError):
                if not self._faults["wakeups"].silent:
                    yield wake
            raise wake
        finally:
            del self._listeners[heard]
            task.cancel()
            await asyncio.wait([task])

    # --- what was asked

    def count(self, verb: str) -> int:
        return sum(call.verb == verb for call in self.calls)

    def requests(self, verb: str) -> list[Any]:
        """The last positional argument of each call: the requests, asks, leases or ids."""
        return [call.args[-1] for call in self.calls if call.verb == verb]


async def _pause(pause: Pause) -> None:
    match pause:
        case asyncio.Event():
            await pause.wait()
        case 0.0:
            return
        case int() | float():
            await asyncio.sleep(pause)
        case _:
            await asyncio.sleep(pause())
