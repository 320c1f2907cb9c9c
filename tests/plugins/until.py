"""Wait for a condition that announces itself in no other way; the deadline only ever ends a failing test."""

import asyncio
from collections.abc import Awaitable, Callable

DEADLINE_S = 60
SLOWEST_S = 0.02
"""Between two looks at something that takes its time: what is waited for needs the processor more."""


async def until(
    condition: Callable[[], object | Awaitable[object]], *, every_s: float = 0.002, deadline_s: float = DEADLINE_S
) -> None:
    """Return as soon as the condition (or what it awaits) is true."""
    async with asyncio.timeout(deadline_s):
        while True:
            answer = condition()
            if await answer if isinstance(answer, Awaitable) else answer:
                return
            await asyncio.sleep(every_s)
            every_s = max(every_s, min(every_s * 1.2, SLOWEST_S))
