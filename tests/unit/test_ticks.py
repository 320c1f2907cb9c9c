"""Loops that check something about once a second wake their process together."""

import asyncio

import pytest

from duetime.model.ticks import TICK_S, to_tick
from tests.simulation.virtual_loop import run_virtual


def test_loops_that_began_at_different_times_wake_together() -> None:
    woken: list[float] = []

    async def loop(begins_s: float, pause_s: float) -> None:
        await asyncio.sleep(begins_s)
        for _ in range(4):
            await asyncio.sleep(to_tick(pause_s, asyncio.get_running_loop()))
            woken.append(asyncio.get_running_loop().time())

    async def story() -> None:
        to_tick(TICK_S, asyncio.get_running_loop())
        await asyncio.gather(*(loop(begins_s, 1.0) for begins_s in (0.0, 0.3, 0.7)), loop(0.5, 2.0))

    run_virtual(story())
    ticks = {round(at - woken[0], 6) for at in woken}
    assert all(at == round(at) for at in ticks), sorted(ticks)


@pytest.mark.parametrize(("passed_s", "pause_s", "expected_s"), [(0.25, 1, 0.75), (0.25, 5, 4.75), (0.25, 0.2, 0.2)])
def test_a_pause_is_shortened_to_a_tick(passed_s: float, pause_s: float, expected_s: float) -> None:
    async def story() -> float:
        to_tick(TICK_S, asyncio.get_running_loop())
        await asyncio.sleep(passed_s)
        return to_tick(pause_s, asyncio.get_running_loop())

    assert run_virtual(story()) == pytest.approx(expected_s)


def test_a_timer_that_fires_a_moment_early_gets_no_second_round() -> None:
    async def story() -> float:
        to_tick(TICK_S, asyncio.get_running_loop())
        await asyncio.sleep(0.999)
        return to_tick(1.0, asyncio.get_running_loop())

    assert run_virtual(story()) == pytest.approx(1.001)
