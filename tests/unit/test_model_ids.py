"""Ids that we make: shape, order, the clock stepping back, lmstfy's layout."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetime.model.clock import ManualClock
from duetime.model.ids import ALPHABET, LENGTH, IdMaker, decode, encode, made_in_one_moment, timestamp_ms


def test_an_id_has_26_characters_of_the_alphabet() -> None:
    made = IdMaker().make()

    assert len(made) == LENGTH == 26
    assert set(made) <= set(ALPHABET)


def test_the_layout_is_that_of_a_ulid() -> None:
    # Given the example of the ULID specification: 01ARZ3NDEK is 1469922850259 ms
    maker = IdMaker(ManualClock(1_469_922_850_259), random_bits=lambda bits: 0)

    assert maker.make() == "01ARZ3NDEK" + "0" * 16


def test_ids_rise_within_a_millisecond() -> None:
    clock = ManualClock()
    maker = IdMaker(clock)

    made = [maker.make() for _ in range(1000)]

    assert made == sorted(set(made))
    assert {timestamp_ms(one) for one in made} == {clock.now_ms()}


def test_counting_up_within_a_millisecond_never_overflows_into_the_time() -> None:
    # Given the largest chance that can be drawn
    clock = ManualClock()
    maker = IdMaker(clock, random_bits=lambda bits: (1 << bits) - 1)

    made = [maker.make() for _ in range(100)]

    assert made == sorted(set(made))
    assert {timestamp_ms(one) for one in made} == {clock.now_ms()}


def test_ids_rise_also_when_the_clock_steps_back() -> None:
    clock = ManualClock(1_800_000_000_000)
    maker = IdMaker(clock)

    first = maker.make()
    clock.set(1_700_000_000_000)
    second = maker.make()

    assert first < second
    assert timestamp_ms(second) == 1_800_000_000_000


@pytest.mark.parametrize("delay_s", [0, 1, 10, 86_400, 2**32 - 1])
def test_lmstfys_layout_ends_in_the_delay(delay_s: int) -> None:
    clock = ManualClock()

    made = IdMaker(clock).make(lmstfy_delay_s=delay_s)

    raw = decode(made).to_bytes(16, "big")
    assert int.from_bytes(raw[12:], "little") == delay_s
    assert timestamp_ms(made) == clock.now_ms()


def test_lmstfys_layout_never_repeats_an_id() -> None:
    maker = IdMaker(ManualClock())

    made = [maker.make(lmstfy_delay_s=10) for _ in range(100)] + [maker.make() for _ in range(100)]

    assert len(set(made)) == 200


def test_a_delay_that_does_not_fit_is_refused() -> None:
    with pytest.raises(OverflowError):
        IdMaker().make(lmstfy_delay_s=2**32)


@given(st.integers(min_value=0, max_value=2**128 - 1))
def test_decode_is_the_inverse_of_encode(number: int) -> None:
    assert decode(encode(number)) == number


@given(st.integers(0, 2**128 - 1), st.integers(0, 2**128 - 1))
def test_text_order_is_number_order(one: int, other: int) -> None:
    assert (encode(one) < encode(other)) == (one < other)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "26 characters"),
        ("0" * 25, "26 characters"),
        ("0" * 27, "26 characters"),
        ("0" * 25 + "U", "only characters of"),
        ("0" * 25 + "a", "only characters of"),
        ("8" + "0" * 25, "128 bits"),
        ("Z" * 26, "128 bits"),
    ],
)
def test_decode_refuses_what_it_cannot_have_made(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode(text)


def test_ids_of_a_batch_are_of_one_moment_and_ids_of_others_are_not() -> None:
    clock = ManualClock(1_800_000_000_000)
    maker = IdMaker(clock=clock)
    first = maker.make()
    clock.advance("100ms")
    second = maker.make()
    clock.advance("1m")
    assert made_in_one_moment(first, second)
    assert not made_in_one_moment(first, maker.make())
    assert not made_in_one_moment("order-2026-1", "order-2026-2")
