"""18. Out of tries with a ttr of 0 or 1: in the dead letter within one to two seconds."""

import asyncio

from tests.doors.lmstfy.client import Lmstfy


async def test_in_time(lmstfy: Lmstfy) -> None:
    async def consumed_with(ttr: int, pause_s: float) -> int:
        queue = f"q{ttr}"
        await lmstfy.publish(queue)
        assert await lmstfy.consume(queue, ttr=ttr)
        await asyncio.sleep(pause_s)
        return await lmstfy.dead_size(queue)

    assert await asyncio.gather(consumed_with(1, 2.0), consumed_with(0, 1.0)) == [1, 1]
