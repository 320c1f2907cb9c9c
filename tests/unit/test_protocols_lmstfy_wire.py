"""How lmstfy's protocol spells JSON, reads queries and keeps secrets out of logs."""

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetime.model.clock import ManualClock
from duetime.model.ids import IdMaker
from duetime.protocols.access_log import mask_query
from duetime.protocols.lmstfy.consumers import remaining_s, remaining_tries
from duetime.protocols.lmstfy.producers import split_array
from duetime.protocols.lmstfy.wire import Refused, elapsed_ms, parse_query, to_json, to_pretty_json, unsigned


def test_keys_are_sorted_and_html_is_escaped() -> None:
    assert to_json({"b": "<a&b>", "a": "\u2028ä"}) == '{"a":"\\u2028ä","b":"\\u003ca\\u0026b\\u003e"}'.encode()
    assert to_pretty_json({"tokens": {"x": "<"}}) == b'{\n    "tokens": {\n        "x": "\\u003c"\n    }\n}'
    assert to_pretty_json({"tokens": {}}) == b'{\n    "tokens": {}\n}'


@pytest.mark.parametrize(
    ("raw", "parsed"),
    [
        (b"", {}),
        (b"a=1&b=2", {"a": "1", "b": "2"}),
        (b"a=1&a=2", {"a": "1"}),
        (b"a&b=", {"a": "", "b": ""}),
        (b"%61=%31+2%2B", {"a": "1 2+"}),
        (b"a=1=2", {"a": "1=2"}),
        (b"&&=x&", {}),
        (b"a=%zz", {"a": "%zz"}),
        (b"a=\xff%ff", {"a": "��"}),
        ("token=schlüssel".encode(), {"token": "schlüssel"}),
        (b"a=\xff", {"a": "\ufffd"}),
    ],
)
def test_parse_query(raw: bytes, parsed: dict[str, str]) -> None:
    assert parse_query(raw) == parsed


@pytest.mark.parametrize(
    ("raw", "masked"),
    [
        (b"token=secret", "token=***"),
        (b"a=1&token=secret&b=2", "a=1&token=***&b=2"),
        (b"%74oken=secret&Token=secret&+token=secret", "%74oken=***&Token=***&+token=***"),
        (b"api_key=secret&client-secret=secret&count=1&token", "api_key=***&client-secret=***&count=1&token"),
        (b"", ""),
    ],
)
def test_mask_query(raw: bytes, masked: str) -> None:
    assert mask_query(raw) == masked


@given(st.text(alphabet="0123456789+- ._٣²", max_size=30))
def test_numbers(text: str) -> None:
    expected = int(text) if text and set(text) <= set("0123456789") else None
    assert unsigned(text, 2**32) == (expected if expected is not None and expected <= 2**32 else None)


def test_remaining() -> None:
    assert [remaining_s(expires_at, 1000) for expires_at in (0, 900, 1000, 1001, 2000, 2001)] == [0, 1, 1, 1, 1, 2]
    assert [remaining_tries(*pair) for pair in [(3, 1), (3, 3), (1, 2), (0, 0), (0, 70_000)]] == [2, 0, 0, 65535, 65535]


def test_elapsed_ms() -> None:
    clock = ManualClock()
    job_id = IdMaker(clock).make(lmstfy_delay_s=7)
    now = clock.advance("250ms")
    assert elapsed_ms(job_id, now) == elapsed_ms("1" + job_id, now) == 250
    assert elapsed_ms(job_id, now - 1000) == 0, "made in the future"
    assert [elapsed_ms(text, now) for text in ("", "x", "order-42", "u" * 26, "11" + job_id)] == [0] * 5


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
BLANKS = st.text(alphabet=" \t\r\n", max_size=3).map(str.encode)


@given(st.lists(st.tuples(BLANKS, JSON.map(to_json) | st.just(b'"\\uD83D"'), BLANKS), max_size=6), BLANKS)
def test_elements_of_an_array_are_cut_out_byte_for_byte(elements: list[tuple[bytes, bytes, bytes]], end: bytes) -> None:
    text = b"[" + b",".join(b"".join(element) for element in elements) + end + b"]"
    assert split_array(text) == [element for _, element, _ in elements]


@given(st.binary(max_size=60))
def test_anything_else_is_refused_and_nothing_worse(text: bytes) -> None:
    with contextlib.suppress(Refused):
        assert all(msgspec.json.decode(element, type=msgspec.Raw) for element in split_array(b"[" + text))
