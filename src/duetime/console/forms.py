"""Forms: every field is read before anything is refused, so that all errors are shown together, each at its field."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from duetime.console.visit import Visit
from duetime.model.clock import duration_ms
from duetime.model.errors import DuetimeError, InvalidRequest, InvalidTime
from duetime.model.when import read_when

T = TypeVar("T")


class FormRefused(InvalidRequest):
    """`errors` says what is wrong with each field, by its name; with the form as a whole under an empty name."""

    def __init__(self, errors: Mapping[str, str]) -> None:
        super().__init__("; ".join(errors.values()))
        self.errors = errors


class FormReader:
    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self.errors: dict[str, str] = {}

    def read(self, name: str, parse: Callable[[str], T], otherwise: T) -> T:
        """The value of a field, or `otherwise` if it is refused."""
        try:
            return parse(self._visit.given(name))
        except DuetimeError as error:
            self.errors[name] = error.message
            return otherwise

    def refuse(self, name: str, why: str) -> None:
        self.errors.setdefault(name, why)

    def check(self) -> None:
        """Raises FormRefused if anything was refused."""
        if self.errors:
            raise FormRefused(self.errors)


def whole_number(text: str, *, most: int = 999_999_999, least: int = 0) -> int:
    """A number of a form; empty is the least. Raises InvalidRequest."""
    stripped = text.strip() or str(least)
    number = int(stripped) if stripped.isascii() and stripped.isdigit() and len(stripped) <= 12 else -1
    if not least <= number <= most:
        raise InvalidRequest(f"must be a whole number from {least:,} to {most:,}, got {stripped[:40]!r}")
    return number


def read_span(text: str) -> int:
    """A duration in milliseconds: in the strict form that programs use, or in words. Raises InvalidTime."""
    try:
        return duration_ms(text.strip())
    except InvalidTime:
        when = read_when(text, now_ms=0, zone=None)
        if when.delay_ms is None or when.delay_ms < 0:
            raise
        return when.delay_ms
