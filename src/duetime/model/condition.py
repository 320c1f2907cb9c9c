"""The retry condition of a topic: it says which answers of a callback mean "try again later".

    {res.code} != 200 && ({res.data.status} != 2 || {res.msg} == 'busy')

A placeholder is the value at that path of the JSON answer, null where there is none. Operators are == != < > <= >= &&
|| and parentheses over placeholders, numbers and quoted texts, compared as PHP 8 does (`php_compare.py`); nothing
else is accepted. Precedence is PHP's: < > <= >= bind closest, then == and !=, then &&, then ||. `parse` checks a
condition when its topic is saved; its errors say where the text is wrong.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from duetime.model.errors import InvalidCondition
from duetime.model.php_compare import Value, item, order, truth

MAX_LENGTH = 2000
MAX_DEPTH = 50

_TOKEN = re.compile(
    r"""(?P<blank>\s+)
    |(?P<path>\{[^{}]*\})
    |(?P<number>-?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)
    |(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    |(?P<operator>==(?!=)|!=(?!=)|<=(?!>)|>=|<(?![<>]|=>)|>(?!>)|&&|\|\||[()])""",
    re.VERBOSE | re.ASCII | re.DOTALL,
)
_PATH = re.compile(r"\{\s*res((?:\s*\.\s*[^\s.{}]+)+)\s*\}")
_ESCAPE = re.compile(r"\\(['\"\\])")
_EQUALITY = ("==", "!=")
_RELATION = ("<", ">", "<=", ">=")


@dataclass(frozen=True)
class Constant:
    value: Value


@dataclass(frozen=True)
class Path:
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    operator: str
    left: "Node"
    right: "Node"


@dataclass(frozen=True)
class Chain:
    """Parts joined by one operator, in one flat node: a long condition does not nest deeply."""

    operator: str
    parts: "tuple[Node, ...]"


Node = Constant | Path | Comparison | Chain


class ConditionToken(NamedTuple):
    """`at` counts characters from 0; the end of the text is a token, too."""

    kind: str
    text: str
    at: int


@dataclass(frozen=True)
class Condition:
    """A parsed condition; without a root it is empty, and never true."""

    root: Node | None

    def holds(self, answer: Value) -> bool:
        """Returns whether the condition is true of this answer, a decoded JSON object or list. Never raises."""
        return self.root is not None and truth(_evaluate(self.root, answer))


def parse(text: str) -> Condition:
    """Reads a condition. Raises InvalidCondition, with `position` (characters from 1) among its fields."""
    if len(text) > MAX_LENGTH:
        _refuse(f"retry condition must have at most {MAX_LENGTH} characters, got {len(text)}", MAX_LENGTH)
    tokens = _tokens(text)
    if tokens[0].kind == "end":
        return Condition(None)
    parser = _Parser(tokens)
    root = parser.either()
    parser.expect_end()
    return Condition(root)


def _refuse(message: str, at: int) -> NoReturn:
    raise InvalidCondition(f"{message} (at character {at + 1})", position=at + 1)


def _tokens(text: str) -> list[ConditionToken]:
    found: list[ConditionToken] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            _refuse(_why_not(text[at:]), at)
        kind = str(match.lastgroup)
        if kind != "blank":
            found.append(ConditionToken(kind, match[0], at))
        at = match.end()
    return [*found, ConditionToken("end", "", len(text))]


def _why_not(rest: str) -> str:
    match rest[0]:
        case "{":
            return "placeholder must be written {res.key} and end with }"
        case "'" | '"':
            return "text must have a closing quote"
        case _:
            # `split` treats more characters as blanks than this grammar does, so there may be no word.
            word = (rest.split(maxsplit=1) or [rest])[0][:20]
            known = "== != < > <= >= && || ( ), numbers, quoted texts and {res.key}"
            return f"condition must consist of {known}, got {word!r}"


class _Parser:
    """A recursive parser with one method per level of precedence, from || down to a single value."""

    def __init__(self, tokens: list[ConditionToken]) -> None:
        self._tokens = tokens
        self._position = 0
        self._depth = 0

    @property
    def _next(self) -> ConditionToken:
        return self._tokens[self._position]

    def _pop(self) -> ConditionToken:
        self._position += 1
        return self._tokens[self._position - 1]

    def either(self) -> Node:
        return self._chain(lambda: self._chain(self._equality, "&&"), "||")

    def _chain(self, part: Callable[[], Node], operator: str) -> Node:
        parts = [part()]
        while self._next.text == operator and self._next.kind == "operator":
            self._pop()
            parts.append(part())
        return parts[0] if len(parts) == 1 else Chain(operator, tuple(parts))

    def _equality(self) -> Node:
        return self._comparison(lambda: self._comparison(self._operand, _RELATION), _EQUALITY)

    def _comparison(self, part: Callable[[], Node], operators: tuple[str, ...]) -> Node:
        """Not a chain: PHP refuses `a == b == c`, and so do we."""
        left = part()
        if self._next.kind != "operator" or self._next.text not in operators:
            return left
        operator = self._pop().text
        node = Comparison(operator, left, part())
        if self._next.kind == "operator" and self._next.text in operators:
            _refuse(f"two comparisons in a row must have parentheses before {self._next.text!r}", self._next.at)
        return node

    def _operand(self) -> Node:
        token = self._pop()
        match token.kind:
            case "number":
                return Constant(int(token.text) if token.text.lstrip("-").isdigit() else float(token.text))
            case "text":
                return Constant(_ESCAPE.sub(r"\1", token.text[1:-1]))
            case "path":
                found = _PATH.fullmatch(token.text)
                if found is None:
                    _refuse("placeholder must be written {res.key} or {res.key.key2}", token.at)
                return Path(tuple(key.strip() for key in found[1].split(".")[1:]))
            case "operator" if token.text == "(":
                return self._group(token)
            case "end":
                _refuse("condition must not end here: a value is missing", token.at)
            case _:
                _refuse(f"condition must have a value here, got {token.text!r}", token.at)

    def _group(self, opening: ConditionToken) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            _refuse(f"parentheses must nest at most {MAX_DEPTH} deep", opening.at)
        node = self.either()
        closing = self._pop()
        if closing.text != ")" or closing.kind != "operator":
            _refuse("parenthesis must be closed with )", opening.at)
        self._depth -= 1
        return node

    def expect_end(self) -> None:
        token = self._next
        if token.kind != "end":
            _refuse(f"condition must have an operator here, got {token.text!r}", token.at)


def _evaluate(node: Node, answer: Value) -> Value:
    match node:
        case Constant(value):
            return value
        case Path(keys):
            return _lookup(answer, keys)
        case Chain(operator, parts):
            join = all if operator == "&&" else any
            return join(truth(_evaluate(part, answer)) for part in parts)
        case Comparison(operator, left, right):
            return _compare(operator, _evaluate(left, answer), _evaluate(right, answer))


def _compare(operator: str, left: Value, right: Value) -> bool:
    found = order(left, right)
    match operator:
        case "==":
            return found == 0
        case "!=":
            return found != 0
        case "<":
            return found == -1
        case "<=":
            return found in (-1, 0)
        case ">=":
            return found in (1, 0)
        case _:
            return found == 1


def _lookup(value: Value, keys: tuple[str, ...]) -> Value:
    for key in keys:
        if not isinstance(value, dict | list):
            return None
        value = item(value, key)  # pyright: ignore[reportUnknownArgumentType]
    return value
