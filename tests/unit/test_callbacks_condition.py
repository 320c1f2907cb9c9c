"""The retry condition: its grammar, its errors, and what it says about answers."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from duetime.model import php_compare
from duetime.model.condition import MAX_DEPTH, MAX_LENGTH, parse
from duetime.model.errors import InvalidCondition

SHAPES = [
    ("{res.code} != 200", {"code": 500}, True),
    ("{res.code} != 200", {"code": 200}, False),
    ("{res.code} != 200", {"code": "200"}, False),
    ("{res.code} != 200", {}, True),
    ("{res.code} != 200 && {res.data.status} != 2", {"code": 500, "data": {"status": 2}}, False),
    ("{res.code} != 200 && {res.data.status} != 2", {"code": 500, "data": {"status": 1}}, True),
    ("{res.code} != 200 && {res.data.status} != 2", {"code": 500}, True),
    ("({res.code} != 200 || {res.msg} == 'busy') && {res.n} < 3", {"code": 200, "msg": "busy", "n": 2}, True),
    ("({res.code} != 200 || {res.msg} == 'busy') && {res.n} < 3", {"code": 200, "msg": "busy", "n": 3}, False),
    ("{res.code}!=200 && {res.data.status}!=2 || {res.data.msg}=='x'", {"code": 200, "data": {"msg": "x"}}, True),
    # && binds closer than ||, whichever comes first.
    ("{res.a} == 1 || {res.b} == 1 && {res.c} == 1", {"a": 1}, True),
    ("({res.a} == 1 || {res.b} == 1) && {res.c} == 1", {"a": 1}, False),
    # < binds closer than ==.
    ("1 < 2 == 3 < 4", {}, True),
    ("{ res . code } == 1", {"code": 1}, True),
    ("{res.list.1} == 'b'", {"list": ["a", "b"]}, True),
    ("{res.0.code} > 400", [{"code": 500}], True),
    ("{res.missing.deep} == ''", {"missing": 5}, True),
    ("{res.ok}", {"ok": "0"}, False),
    ("{res.ok}", {"ok": [0]}, True),
    ("{res.n} <= 3 && {res.n} >= 3", {"n": 3}, True),
    ("{res.n}>=4 || {res.n}<=2", {"n": "3"}, False),
    ("{res.list} <= {res.other}", {"list": [1, 2], "other": {"0": 1, "x": 2}}, False),
    ("{res.t} < -1.5e3", {"t": -1501}, True),
    (r"{res.msg} == 'it\'s'", {"msg": "it's"}, True),
    ('{res.msg} == "say \\"x\\" \\n"', {"msg": 'say "x" \\n'}, True),
    ("{res.名} == '好'", {"名": "好"}, True),
    ("", {"code": 500}, False),
    ("   ", {"code": 500}, False),
]


@pytest.mark.parametrize(("text", "answer", "expected"), SHAPES)
def test_a_condition_judges_an_answer(text: str, answer: Any, expected: bool) -> None:
    assert parse(text).holds(answer) is expected


REFUSED = [
    ("{res.code} = 200", 12),
    ("{res.code} === 200", 12),
    ("{res.code} !== 200", 12),
    ("{res.code} <=> 200", 12),
    ("{res.code} =< 200", 12),
    ("{res.code} << 200", 12),
    ("{res.code} <> 200", 12),
    ("!{res.code}", 1),
    ("{res.code} & 1", 12),
    ("{res.code} != 200 &&", 21),
    ("{res.code} == 'x", 15),
    ("{res.code", 1),
    ("{code} == 1", 1),
    ("{res} == 1", 1),
    ("{res.} == 1", 1),
    ("{res.a..b} == 1", 1),
    ("({res.a} == 1", 1),
    ("{res.a} == 1)", 13),
    ("()", 2),
    ("1 == 2 == 3", 8),
    ("1 < 2 > 3", 7),
    ("1 2", 3),
    ("true == 1", 1),
    ("system('id')", 1),
    ("{res.a} == `id`", 12),
    ("$x == 1", 1),
    ("1 == 1; phpinfo()", 7),
    ("(" * (MAX_DEPTH + 1) + "1" + ")" * (MAX_DEPTH + 1), MAX_DEPTH + 1),
    ("1" * (MAX_LENGTH + 1), MAX_LENGTH + 1),
]


@pytest.mark.parametrize(("text", "position"), REFUSED)
def test_a_syntax_error_is_refused_with_its_position(text: str, position: int) -> None:
    with pytest.raises(InvalidCondition) as refused:
        parse(text)

    assert refused.value.fields["position"] == position
    assert f"at character {position}" in refused.value.message


PHP_8 = [
    # (left, right, <=>), from the comparison table of PHP 8's manual and its notes.
    (0, "a", -1),
    ("1", "01", 0),
    ("10", "1e1", 0),
    (100, "1e2", 0),
    ("abc", 0, 1),
    (None, False, 0),
    (None, 0, 0),
    (None, "", 0),
    (None, "0", -1),
    (None, "a", -1),
    (None, [], 0),
    (None, [0], -1),
    (False, "0", 0),
    (False, "", 0),
    (True, "0", 1),
    (True, "a", 0),
    (True, [0], 0),
    (1, " 1", 0),
    (1, "1 ", 0),
    (1, "1x", -1),
    ("1x", "1", 1),
    (1.5, "1.5", 0),
    ("1e1000", "1e1001", -1),
    ("9223372036854775808", "9223372036854775809", -1),
    ("9223372036854775807", 9223372036854775807, 0),
    (9007199254740993, 9007199254740992.0, 0),
    (1e25, "1.0E+25", 0),
    (1e25, "x", -1),
    (0.1 + 0.2, "0.3x", -1),
    ("B", "a", -1),
    ("", "0", -1),
    ([], "a", 1),
    ([1], 5, 1),
    ("z", [1], -1),
    ([1, 2], [1, 2], 0),
    ([1, 2], [1, 3], -1),
    ([1], [1, 2], -1),
    ({"a": 1}, {"b": 1}, None),
    ({"0": 1}, [1], 0),
    ({}, [], 0),
    ({"a": {"b": "1"}}, {"a": {"b": 1}}, 0),
    ({"a": [1, 2], "b": 1}, {"a": [1, 3], "c": 1}, -1),
    ({"a": [1, 2], "b": 1}, {"a": [1, 2], "c": 1}, None),
    ("0" * 30 + "9223372036854775807", 9223372036854775807, 0),
    ("1" * 5000, "2" * 5000, -1),
    ("-" + "1" * 5000, 1, -1),
    ("1" * 5000, "x", -1),
]


@pytest.mark.parametrize(("left", "right", "expected"), PHP_8)
def test_comparison_is_that_of_php_8(left: Any, right: Any, expected: int | None) -> None:
    assert php_compare.order(left, right) == expected
    mirrored = None if expected is None else -expected
    assert php_compare.order(right, left) == mirrored


@pytest.mark.parametrize("value", [None, False, 0, 0.0, -0.0, "", "0", [], {}])
def test_false_values(value: Any) -> None:
    assert not php_compare.truth(value)


@pytest.mark.parametrize("value", [True, 1, -1, 0.1, "00", "0.0", " ", "false", [0], {"a": None}])
def test_true_values(value: Any) -> None:
    assert php_compare.truth(value)


@pytest.mark.parametrize(("value", "text"), [(1.0, "1"), (1e-7, "1.0E-7"), (1.5e30, "1.5E+30"), (-0.5, "-0.5")])
def test_numbers_are_written_as_php_writes_them(value: float, text: str) -> None:
    assert php_compare.text_of(value) == text


def nested(depth: int, innermost: Any) -> Any:
    """Arrays inside each other; an answer may have as many as its bytes allow."""
    value = innermost
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(("left", "right", "expected"), [(1, 1, 0), (1, 2, -1), ({"a": 1}, {"b": 1}, None)])
def test_arrays_are_compared_however_deep_they_are(left: Any, right: Any, expected: int | None) -> None:
    assert php_compare.order(nested(20_000, left), nested(20_000, right)) == expected


@pytest.mark.parametrize("key", ["-1", "00", "01", "2", "x", "9" * 1500, "\u00b2"])
def test_a_place_that_a_list_has_not_is_null(key: str) -> None:
    assert parse(f"{{res.{key}}} == 'x'").holds(["x", "x"]) is False


# --- properties

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
numeric_texts = st.integers(-100, 100).map(str) | st.sampled_from(["1e1", " 10", "10 ", ".5", "0x1A", "1e", "9" * 25])
values = st.recursive(
    scalars | numeric_texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab01"), inner, max_size=3),
    max_leaves=8,
)
operands = (
    st.sampled_from(["{res.a}", "{res.b}", "{ res.a.b }", "{res.0}", "'x'", '"1"', "''"])
    | st.integers(-5, 5).map(str)
    | st.sampled_from(["0.5", "1e3", ".5"])
)
conditions = st.recursive(
    operands,
    lambda inner: st.builds(
        "({} {} {})".format, inner, st.sampled_from(["==", "!=", "<", ">", "<=", ">=", "&&", "||"]), inner
    ),
    max_leaves=10,
)
answers = st.dictionaries(st.sampled_from("ab01"), values, max_size=4) | st.lists(values, max_size=3)


@given(values, values)
def test_equality_is_symmetric_and_less_is_the_mirror_of_greater(left: Any, right: Any) -> None:
    there, back = php_compare.order(left, right), php_compare.order(right, left)

    assert (there == 0) == (back == 0)
    if there is not None and back is not None and not _holds_an_uncomparable(left, right):
        assert there == -back


def _holds_an_uncomparable(left: Any, right: Any) -> bool:
    """Arrays are walked in the left one's order, so two that differ in several places may be 'less' from both sides."""
    return isinstance(left, list | dict) and isinstance(right, list | dict)


@given(values)
def test_everything_equals_itself(value: Any) -> None:
    assert php_compare.order(value, value) == 0


@given(conditions, answers)
def test_a_condition_of_the_grammar_is_read_and_decided(text: str, answer: Any) -> None:
    assert parse(text).holds(answer) in (True, False)


@given(conditions, conditions, answers)
def test_and_or_and_parentheses(left: str, right: str, answer: Any) -> None:
    one, other = parse(left).holds(answer), parse(right).holds(answer)

    assert parse(f"{left} && {right}").holds(answer) is (one and other)
    assert parse(f"{left} || {right}").holds(answer) is (one or other)
    assert parse(f"(({left}))").holds(answer) is one
    assert parse(f"{left} || {right} && {left}").holds(answer) is (one or (other and one))


@given(st.text(st.sampled_from("{}res.a =!<>&|()'\"\\ 0123456789e-+$;`"), max_size=40) | st.text(max_size=40))
@example("'\\")
@example("{res.\\}")
@example("\x1f")
def test_any_text_is_read_or_refused_with_a_place_inside_it(text: str) -> None:
    place = 1
    try:
        parse(text).holds({"a": 1})
    except InvalidCondition as refused:
        place = refused.fields["position"]

    assert 1 <= place <= len(text) + 1


@given(st.integers(1, 600))
def test_a_long_condition_is_not_a_deep_one(parts: int) -> None:
    assert parse("&&".join("1" * parts)).holds({}) is True
