"""Clocks, durations and instants."""

import asyncio
import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetime.model.clock import (
    MAX_DURATION,
    MAX_INSTANT,
    SECONDS,
    TICK_S,
    Clock,
    ManualClock,
    SystemClock,
    duration_ms,
    instant_ms,
    rfc3339,
    to_tick,
)
from duetime.model.errors import InvalidTime
from duetime.model.when import When, read_when
from tests.simulation.virtual_loop import run_virtual


def test_the_system_clock_is_the_hosts_time() -> None:
    clock: Clock = SystemClock()

    before, told, after = time.time_ns() // 1_000_000, clock.now_ms(), time.time_ns() // 1_000_000
    first, second = clock.monotonic(), clock.monotonic()

    assert before <= told <= after
    assert first <= second


def test_a_manual_clock_moves_only_when_it_is_set() -> None:
    clock = ManualClock(1000)

    assert (clock.now_ms(), clock.now_ms(), clock.monotonic()) == (1000, 1000, 0.0)
    assert clock.advance("1.5s") == 2500
    assert (clock.now_ms(), clock.monotonic()) == (2500, 1.5)


@pytest.mark.parametrize("text", ["0s" * 4_000_000, "9" * 100, " " * 65, "1s" + " " * 100])
def test_a_long_text_is_no_time(text: str) -> None:
    for read in (duration_ms, instant_ms):
        with pytest.raises(InvalidTime, match="at most 64 characters") as refused:
            read(text)
        assert len(refused.value.message) < 200


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        (0, 0),
        (90, 90_000),
        (1.5, 1500),
        (0.07, 70),
        (0.0001, 1),
        (0.0015, 2),
        ("90", 90_000),
        ("0", 0),
        ("1.5", 1500),
        ("250ms", 250),
        ("10s", 10_000),
        ("5m", 300_000),
        ("2h", 7_200_000),
        ("3d", 259_200_000),
        ("1w", 604_800_000),
        ("1h30m", 5_400_000),
        ("1m1ms", 60_001),
        (" 10S ", 10_000),
        ("0.5ms", 1),
        (timedelta(0), 0),
        (timedelta(days=1, microseconds=1), 86_400_001),
        (timedelta(milliseconds=3), 3),
        (MAX_DURATION // 1000, MAX_DURATION),
    ],
)
def test_durations(value: Any, ms: int) -> None:
    assert duration_ms(value) == ms


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (True, "number of seconds"),
        (-1, "not be negative"),
        (-0.5, "not be negative"),
        (timedelta(microseconds=-1), "not be negative"),
        (float("nan"), "finite"),
        (float("inf"), "finite"),
        ("", "duration must be like 90"),
        ("s", "duration must be like 90"),
        ("10 s", "duration must be like 90"),
        ("10x", "duration must be like 90"),
        ("-5s", "duration must be like 90"),
        ("1h30", "duration must be like 90"),
        ("1e3", "duration must be like 90"),
        ("٣s", "duration must be like 90"),
        ("5s\n5s", "duration must be like 90"),
        (None, "duration must be like 90"),
        (b"5s", "duration must be like 90"),
        (MAX_DURATION // 1000 + 1, "at most 136 years"),
        ("99999d", "at most 136 years"),
        (1e308, "at most 136 years"),
        (-1e308, "not be negative"),
        (10**400, "at most 136 years"),
        (-(10**400), "not be negative"),
        ("9" * 60 + "d", "at most 136 years"),
    ],
)
def test_not_durations(value: Any, message: str) -> None:
    with pytest.raises(InvalidTime, match=message):
        duration_ms(value)


@given(st.integers(0, MAX_DURATION))
def test_a_duration_is_never_rounded_down(microseconds: int) -> None:
    ms = duration_ms(timedelta(microseconds=microseconds))

    assert microseconds <= ms * 1000 < microseconds + 1000


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        (0, 0),
        (1_800_000_000_000, 1_800_000_000_000),
        (MAX_INSTANT, MAX_INSTANT),
        (SECONDS.stop, SECONDS.stop),
        ("1972-01-01T00:00:00Z", 63_072_000_000),
        ("1800000000000", 1_800_000_000_000),
        ("1970-01-01T00:00:00Z", 0),
        ("2027-01-15T08:00:00Z", 1_800_000_000_000),
        ("2027-01-15T09:00:00+01:00", 1_800_000_000_000),
        (" 2027-01-15T08:00:00.001Z ", 1_800_000_000_001),
        ("2027-01-15T08:00:00.000001Z", 1_800_000_000_001),
        ("2100-01-01T00:00:00Z", 4_102_444_800_000),
        (datetime(2027, 1, 15, 8, tzinfo=UTC), 1_800_000_000_000),
        (datetime(2027, 1, 15, 9, tzinfo=timezone(timedelta(hours=1))), 1_800_000_000_000),
        (datetime(2027, 1, 15, 8, microsecond=1, tzinfo=UTC), 1_800_000_000_001),
    ],
)
def test_instants(value: Any, ms: int) -> None:
    assert instant_ms(value) == ms


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (False, "epoch milliseconds"),
        (-1, "between 1970 and 9999"),
        (MAX_INSTANT + 1, "between 1970 and 9999"),
        ("9" * 40, "between 1970 and 9999"),
        (1.5, "instant must be an aware datetime"),
        (None, "instant must be an aware datetime"),
        (1_795_236_220, "looks like seconds, give 1795236220000"),
        (1_795_236_220.5, "looks like seconds, give 1795236220500"),
        (" 1795236220 ", "looks like seconds, give 1795236220000"),
        (SECONDS.start, "looks like seconds, give 100000000000"),
        (SECONDS.stop - 1, "looks like seconds, give 99999999999000"),
        ("tomorrow", "instant must be like 2026"),
        ("", "instant must be like 2026"),
        ("2027-01-15T08:00:00", "must have a time zone"),
        (datetime(2027, 1, 15, 8), "must have a time zone, got 2027-01-15T08:00:00"),
        (datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC), "between 1970 and 9999"),
    ],
)
def test_not_instants(value: Any, message: str) -> None:
    with pytest.raises(InvalidTime, match=message):
        instant_ms(value)


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_800_000_000_007, "2027-01-15T08:00:00.007Z"),
        (MAX_INSTANT, "9999-12-31T23:59:59.999Z"),
    ],
)
def test_rfc3339(at: int, text: str) -> None:
    assert rfc3339(at) == text


@given(st.integers(0, MAX_INSTANT))
def test_rfc3339_reads_back(at: int) -> None:
    assert instant_ms(rfc3339(at)) == at


# --- loops that check something about once a second wake their process together


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


# --- times as people type them, read on Wednesday 2026-11-18 at 15:30 in Berlin


BERLIN = ZoneInfo("Europe/Berlin")
NOW = int(datetime(2026, 11, 18, 15, 30, tzinfo=BERLIN).timestamp() * 1000)


def at(*day: int) -> When:
    return When(due_at=int(datetime(*day, tzinfo=BERLIN).timestamp() * 1000))  # pyright: ignore


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("now", When(delay_ms=0)),
        ("90", When(delay_ms=90_000)),
        ("10m", When(delay_ms=600_000)),
        ("5 minutes", When(delay_ms=300_000)),
        ("in 5 minutes", When(delay_ms=300_000)),
        ("1h30", When(delay_ms=5_400_000)),
        ("1 hour and 30 min", When(delay_ms=5_400_000)),
        ("5m 3", When(delay_ms=303_000)),
        ("1.5 days", When(delay_ms=129_600_000)),
        ("5分钟", When(delay_ms=300_000)),
        ("-1h", When(delay_ms=-3_600_000)),
        ("2 days ago", When(delay_ms=-172_800_000)),
        ("tomorrow", at(2026, 11, 19)),
        ("Tomorrow 09:00", at(2026, 11, 19, 9)),
        ("明天 09:00", at(2026, 11, 19, 9)),
        ("tomorrow at 9am", at(2026, 11, 19, 9)),
        ("today 18:00", at(2026, 11, 18, 18)),
        ("yesterday 12pm", at(2026, 11, 17, 12)),
        ("18:00", at(2026, 11, 18, 18)),
        ("09:00", at(2026, 11, 19, 9)),
        ("fri 18:00", at(2026, 11, 20, 18)),
        ("wednesday", at(2026, 11, 25)),
        ("2026-12-01 09:00", at(2026, 12, 1, 9)),
        ("2026-12-01", at(2026, 12, 1)),
        ("2027-07-01T09:00", at(2027, 7, 1, 9)),
        ("2026-12-01T08:00:00Z", at(2026, 12, 1, 9)),
        ("2026-12-01 08:00 UTC", at(2026, 12, 1, 9)),
        ("1796112000000", When(due_at=1_796_112_000_000)),
    ],
)
def test_a_time_is_read(text: str, when: When) -> None:
    assert read_when(text, now_ms=NOW, zone=BERLIN) == when


@pytest.mark.parametrize("text", ["", "soon", "5 moons", "1h30 2", "25:00", "13pm", "fri 9 o'clock", "9" * 70])
def test_a_wrong_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(InvalidTime, match=r"time must"):
        read_when(text, now_ms=NOW, zone=BERLIN)


def test_a_delay_and_an_instant_become_an_instant() -> None:
    assert When(delay_ms=1000).at(NOW) == NOW + 1000
    assert When(due_at=5).at(NOW) == 5
    assert read_when("2027-07-01 09:00", now_ms=NOW, zone=None).due_at is not None
    assert read_when("10:00", now_ms=0, zone=UTC) == When(due_at=36_000_000)
