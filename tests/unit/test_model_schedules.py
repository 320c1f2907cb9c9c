"""When recurring tasks run."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetime.model.errors import InvalidRequest
from duetime.model.schedules import MOST_RUNS, Missed, Schedule, SchedulePlan, cron, every, plan

HOUR = 3_600_000
INSTANTS = st.integers(0, 4_000_000_000_000)


def at(text: str, zone: str = "UTC") -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)


def test_every_runs_at_whole_multiples() -> None:
    hourly = every("1h")
    assert hourly.after(at("2026-11-15T08:59:59.999")) == at("2026-11-15T09:00")
    assert hourly.after(at("2026-11-15T09:00")) == at("2026-11-15T10:00")
    assert hourly.until(at("2026-11-15T09:00")) == at("2026-11-15T09:00")
    assert hourly.until(at("2026-11-15T08:59:59.999")) == at("2026-11-15T08:00")


def test_cron_runs_in_its_zone() -> None:
    morning = cron("0 9 * * *", "Asia/Shanghai")
    assert morning.after(at("2026-11-15T00:59:59")) == at("2026-11-15T01:00")
    assert morning.after(at("2026-11-15T01:00")) == at("2026-11-16T01:00")
    assert morning.until(at("2026-11-15T01:00")) == at("2026-11-15T01:00")
    assert morning.until(at("2026-11-15T01:00:30")) == at("2026-11-15T01:00")
    assert morning.until(at("2026-11-15T00:59:59.999")) == at("2026-11-14T01:00")


def test_cron_when_clocks_are_turned() -> None:
    night = cron("30 2 * * *", "Europe/Berlin")
    assert night.after(at("2026-03-29T00:00", "Europe/Berlin")) == at("2026-03-29T03:00", "Europe/Berlin")
    first = night.after(at("2026-10-25T00:00", "Europe/Berlin"))
    assert night.after(first) == at("2026-10-26T02:30", "Europe/Berlin")


@given(INSTANTS, st.sampled_from([every("7s"), every("1h"), cron("*/5 * * * *"), cron("30 2 * * *", "Europe/Berlin")]))
def test_runs_are_the_same_from_both_sides(now: int, schedule: Schedule) -> None:
    last, following = schedule.until(now), schedule.after(now)
    assert last <= now < following
    assert schedule.after(last) == following
    assert schedule.until(following) == following


@pytest.mark.parametrize(
    ("missed", "runs"),
    [("last", (9,)), ("all", (6, 7, 8, 9)), ("none", ())],
)
def test_missed_runs(missed: Missed, runs: tuple[int, ...]) -> None:
    found = plan(every("1h"), missed, 6 * HOUR, 9 * HOUR + HOUR // 2)
    assert found == SchedulePlan(tuple(run * HOUR for run in runs), 10 * HOUR)


@pytest.mark.parametrize("missed", ["last", "all", "none"])
def test_a_tick_in_time_runs_once_for_every_setting_of_missed(missed: Missed) -> None:
    assert plan(every("1h"), missed, 6 * HOUR, 6 * HOUR + 40) == SchedulePlan((6 * HOUR,), 7 * HOUR)
    assert plan(every("1h"), missed, 6 * HOUR, 6 * HOUR - 40) == SchedulePlan((6 * HOUR,), 7 * HOUR)


def test_a_long_row_of_missed_runs_is_caught_up_on_in_steps() -> None:
    first = plan(every("1s"), "all", 0, 10_000_000)
    assert len(first.runs) == MOST_RUNS
    assert first.next_at == MOST_RUNS * 1000
    second = plan(every("1s"), "all", first.next_at, 10_000_000)
    assert second.runs[0] == first.runs[-1] + 1000


@pytest.mark.parametrize("wrong", ["", "* * *", "61 * * * *", "0 0 31 2 *", "@every 5s", "a b c d e"])
def test_wrong_cron_expressions(wrong: str) -> None:
    with pytest.raises(InvalidRequest):
        cron(wrong)


def test_other_things_that_cannot_be() -> None:
    for zone in ("Mars/Olympus", "", "America", "../etc", "a\0b", "a" * 5000):
        with pytest.raises(InvalidRequest, match="unknown time zone"):
            cron("* * * * *", zone)
    with pytest.raises(InvalidRequest, match="interval must be at least 1s"):
        every("10ms")


def test_an_interval_is_shown_as_people_write_it() -> None:
    for text in ("1s", "90s", "15m", "36h", "7d", "1500ms"):
        assert every(text).text == f"every {text}"
