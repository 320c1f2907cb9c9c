"""How long to wait before the next try."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetime.model.backoff import Exponential, Fixed, Listed, OddMinutes, Outage, parse
from duetime.model.errors import InvalidRequest, InvalidTime


def waits(policy: Any, failures: int) -> list[int]:
    return [policy.delay_ms(n) for n in range(1, failures + 1)]


def test_a_long_text_is_no_backoff() -> None:
    assert parse(",".join(["1s"] * 300)) == Listed((1000,) * 300)
    with pytest.raises(InvalidRequest, match="at most 1000 characters"):
        parse("1s," * 1_000_000 + "1s")


def test_fixed_waits_the_same_every_time() -> None:
    assert waits(Fixed(10_000), 3) == [10_000, 10_000, 10_000]


def test_listed_repeats_its_last() -> None:
    assert waits(Listed((1000, 5000, 60_000)), 5) == [1000, 5000, 60_000, 60_000, 60_000]


def test_exponential_doubles_up_to_its_cap() -> None:
    assert waits(Exponential(1000, cap_ms=6000, jitter=0), 5) == [1000, 2000, 4000, 6000, 6000]


def test_exponential_takes_its_factor() -> None:
    assert waits(Exponential(100, factor=3, jitter=0), 4) == [100, 300, 900, 2700]


def test_exponential_survives_any_number_of_failures() -> None:
    assert Exponential(1000, jitter=0).delay_ms(1_000_000) == 3_600_000


def test_jitter_takes_away_up_to_its_share() -> None:
    drawn = [Exponential(1000, jitter=0.5, chance=lambda c=chance: c).delay_ms(1) for chance in (0.0, 0.5, 1.0)]

    assert drawn == [1000, 750, 500]


@given(st.integers(1, 2000), st.floats(0, 1))
def test_jitter_stays_between_half_and_full(failures: int, chance: float) -> None:
    whole = Exponential(250, jitter=0).delay_ms(failures)

    assert whole / 2 - 1 <= Exponential(250, chance=lambda: chance).delay_ms(failures) <= whole


def test_odd_minutes_is_php_delayqueues_schedule() -> None:
    assert waits(OddMinutes(), 4) == [60_000, 180_000, 300_000, 420_000]


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("10s", Fixed(10_000)),
        (10, Fixed(10_000)),
        ("0", Fixed(0)),
        ("1s,5s,1m", Listed((1000, 5000, 60_000))),
        ("exponential:1s", Exponential(1000)),
        ("exponential:1s:1h", Exponential(1000, cap_ms=3_600_000)),
        (" odd-minutes ", OddMinutes()),
    ],
)
def test_parse(text: Any, policy: Any) -> None:
    assert parse(text) == policy


@pytest.mark.parametrize(
    "text", ["exponential:1s:1h:2", "exponential:", "odd-minutes:3", "fibonacci", "", "1s,,2s", "1s:2s"]
)
def test_parse_refuses_the_rest(text: str) -> None:
    with pytest.raises((InvalidRequest, InvalidTime)):
        parse(text)


def test_an_outage_is_logged_once_and_waits_by_its_policy() -> None:
    outage = Outage(Listed((100, 300)))
    assert outage.worked() == 0
    assert [(outage.failed(), outage.pause_s) for _ in range(3)] == [(True, 0.1), (False, 0.3), (False, 0.3)]
    assert outage.worked() == 3
    assert (outage.failed(), outage.pause_s) == (True, 0.1)
