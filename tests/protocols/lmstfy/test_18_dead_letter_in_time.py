"""18. Out of tries with a ttr of 0 or 1: in the dead letter, and not before its time.

How soon after it is the reaper's matter, proved in virtual time in tests/unit/test_engine_reaper.py.
"""

import asyncio
import time

from tests.plugins.until import until
from tests.protocols.lmstfy.client import Lmstfy


async def test_in_time(lmstfy: Lmstfy) -> None:
    async def consumed_with(ttr: int) -> float:
        queue = f"q{ttr}"

        async def is_dead() -> bool:
            return await lmstfy.dead_size(queue) == 1

        await lmstfy.publish(queue)
        begun = time.monotonic()
        assert await lmstfy.consume(queue, ttr=ttr)
        await until(is_dead, every_s=0.05)
        return time.monotonic() - begun

    long_s, _ = await asyncio.gather(consumed_with(1), consumed_with(0))
    assert long_s >= 1.0
