"""A lane of the batcher whose requests are texts."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from duetime.engine.batcher import Lane, ReplyScheduler
from duetime.engine.requests import Request
from duetime.model.errors import DuetimeError
from duetime.model.names import Queue


class Text(Request[str], frozen=True):
    text: str
    size: int

    def weight(self) -> int:
        return self.size


class TextLane(Lane[Text, str]):
    def __init__(
        self,
        call: Callable[[Queue, Sequence[str]], Awaitable[Sequence[str | DuetimeError]]],
        replies: ReplyScheduler,
        *,
        max_weight: int,
        orphan: Callable[[str], None] = lambda text: None,
        flushed: Callable[[], asyncio.Future[None]] | None = None,
    ) -> None:
        super().__init__(replies, max_weight=max_weight, flushed=flushed)
        self._call = call
        self.orphan = orphan

    async def call(self, queue: Queue, requests: Sequence[Text]) -> Sequence[str | DuetimeError]:
        return await self._call(queue, [request.text for request in requests])

    async def run(self, queue: Queue, text: str, weight: int = 1) -> str:
        return await super().run(Text(queue, text, weight))
