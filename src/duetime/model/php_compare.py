"""PHP 8's loose comparison, for values that came out of JSON.

One table says how values of two kinds compare; the other functions convert a value of one kind to another. A JSON list
is an array whose keys are its positions, as in PHP. `order` answers -1, 0 or 1, or None where PHP calls two arrays
uncomparable; of these only `!=` is true. Pure functions; only the retry condition of a topic calls them.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

Value = Any
"""None, bool, int, float, str, list or dict."""

MAX_INT = 2**63 - 1
MAX_DIGITS = len(str(MAX_INT))
_MISSING = object()
_INDEX = re.compile(r"0|[1-9]\d{0,9}", re.ASCII)
_NUMERIC = re.compile(r"[ \t\n\r\v\f]*([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)[ \t\n\r\v\f]*", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)


def truth(value: Value) -> bool:
    """PHP's truth: null, false, 0, "", "0" and an empty array are false."""
    return value != "0" and bool(value)


def order(left: Value, right: Value) -> int | None:
    """-1, 0 or 1 for less, equal, greater. Returns None if the two cannot be compared.

    Of two arrays the longer one is greater. Arrays of the same length are compared key by key, and a key that the
    right one lacks makes them uncomparable. This is a loop and no recursion, because a receiver decides how deep
    arrays nest.
    """
    waiting = [(left, right)]
    while waiting:
        left, right = waiting.pop()
        if right is _MISSING:
            return None
        kinds = _kind(left), _kind(right)
        if kinds != ("array", "array"):
            found = _TABLE.get(kinds, _by_truth)(left, right)
        else:
            a, b = items(left), items(right)
            found = (len(a) > len(b)) - (len(a) < len(b))
            waiting += [(value, b.get(key, _MISSING)) for key, value in reversed(a.items())]
        if found:
            return found
    return 0


def _kind(value: Value) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "bool"
        case int() | float():
            return "number"
        case str():
            return "string"
        case _:
            return "array"


def _by_truth(left: Value, right: Value) -> int:
    return truth(left) - truth(right)


def _numbers(left: float, right: float) -> int:
    a, b = _machine(left), _machine(right)
    if isinstance(a, float) or isinstance(b, float):
        a, b = float(a), float(b)
    return (a > b) - (a < b)


def _texts(left: str, right: str) -> int:
    a, b = left.encode(errors="surrogatepass"), right.encode(errors="surrogatepass")
    return (a > b) - (a < b)


def _strings(left: str, right: str) -> int:
    """Strings compare as numbers if both are numeric, else as texts."""
    a, b = number(left), number(right)
    if a is None or b is None:
        return _texts(left, right)
    if a == b and (_overflows(left, a) and _overflows(right, b)):
        return _texts(left, right)
    return _numbers(a, b)


def _overflows(text: str, value: float) -> bool:
    """Returns whether parsing lost digits: two different texts may then give the same number."""
    return isinstance(value, float) and (math.isinf(value) or bool(_INTEGER.fullmatch(text.strip())))


def _number_and_string(left: float, right: str) -> int:
    value = number(right)
    return _texts(text_of(left), right) if value is None else _numbers(left, value)


_TABLE: Mapping[tuple[str, str], Callable[[Any, Any], int]] = {
    ("null", "string"): lambda _, right: _strings("", right),
    ("string", "null"): lambda left, _: _strings(left, ""),
    ("number", "number"): _numbers,
    ("number", "string"): _number_and_string,
    ("string", "number"): lambda left, right: -_number_and_string(right, left),
    ("string", "string"): _strings,
    ("array", "number"): lambda _, __: 1,
    ("array", "string"): lambda _, __: 1,
    ("number", "array"): lambda _, __: -1,
    ("string", "array"): lambda _, __: -1,
}
"""How values of two types compare; those of other types compare by truth, and two arrays by their items."""


def number(text: str) -> int | float | None:
    """The number that a numeric string represents, None if it is not numeric; blanks around it are allowed."""
    found = _NUMERIC.fullmatch(text)
    if found is None:
        return None
    # Longer integers are beyond 64 bits, and Python refuses to read thousands of digits as an int.
    if _INTEGER.fullmatch(found[1]) and len(found[1].lstrip("+-0")) <= MAX_DIGITS:
        return _machine(int(found[1]))
    return float(found[1])


def _machine(value: float) -> int | float:
    """The number as PHP holds it: an integer beyond 64 bits becomes a float."""
    if isinstance(value, int) and not -MAX_INT - 1 <= value <= MAX_INT:
        return float(value) if abs(value).bit_length() <= 1023 else math.copysign(math.inf, value)
    return value


def text_of(value: float) -> str:
    """A number as PHP prints it: 14 digits, `1.0E+25`."""
    value = _machine(value)
    if isinstance(value, int):
        return str(value)
    if math.isinf(value):
        return "INF" if value > 0 else "-INF"
    mantissa, e, exponent = f"{value:.14G}".partition("E")
    if not e:
        return mantissa
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}E{exponent[0]}{exponent[1:].lstrip('0')}"


def items(array: list[Value] | dict[str, Value]) -> dict[str, Value]:
    """The values of an array by its keys; the keys of a list are its positions."""
    return {str(index): value for index, value in enumerate(array)} if _is_list(array) else dict(array)


def item(array: list[Value] | dict[str, Value], key: str) -> Value:
    """Returns `items(array).get(key)` without copying a list."""
    if isinstance(array, dict):
        return array.get(key)
    index = int(key) if _INDEX.fullmatch(key) else len(array)
    return array[index] if index < len(array) else None


def _is_list(array: object) -> TypeGuard[list[Value]]:
    return isinstance(array, list)
