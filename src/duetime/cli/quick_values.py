"""Texts of the command line as what functions want, without the validators of Typer, whose import takes longer than a
push.

Plain kinds are read here: text, whole numbers, words of an enumeration, paths, and lists of these. Whatever does not
fit, and every other kind, goes to Typer, which also says what is wrong with it.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin

Reader = Callable[[Any], Any]


def quick_option(option: Any) -> Any:
    read_quickly([option] if option else [])
    return option


def read_quickly(parameters: Sequence[Any]) -> None:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.display_type_rich = _no_type  # a flag takes no value, so its help names no type
        descriptor: Any = getattr(parameter, "type_descriptor", None)
        reader = descriptor and _reader(descriptor.annotation, descriptor.parameter_info)
        if reader:
            parameter.get_runtime_param = QuickValue(reader, parameter.get_runtime_param).get


def _no_type(ctx: Any) -> None:
    del ctx


class QuickValue:
    """Stands where Typer keeps what turns a parameter's text into its value."""

    def __init__(self, read: Reader, typers: Callable[[], Any]) -> None:
        self._read, self._typers = read, typers

    def get(self) -> "QuickValue":
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        try:
            return self._read(value)
        except ValueError:
            return self._typers().coerce(value, param=param, ctx=ctx)


def _reader(annotation: Any, info: Any) -> Reader | None:
    if get_origin(annotation) is list:
        each = _reader(get_args(annotation)[0], info)
        return None if each is None else _list_reader(each)
    if annotation in _READERS:
        return _READERS[annotation]
    if annotation is int:
        return _number_reader(info.min, info.max)
    if annotation is Path and not info.exists and not info.resolve_path:
        return Path
    return annotation if isinstance(annotation, type) and issubclass(annotation, Enum) else None


def _flag(value: Any) -> bool:
    """A flag that was given is one already."""
    if not isinstance(value, bool):
        raise ValueError(value)
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(value)
    return value


_READERS: dict[Any, Reader] = {str: _text, bool: _flag}


def _number_reader(least: int | None, most: int | None) -> Reader:
    def read(value: Any) -> int:
        number = int(value)
        if isinstance(value, float) or (least is not None and number < least) or (most is not None and number > most):
            raise ValueError(value)
        return number

    return read


def _list_reader(each: Reader) -> Reader:
    def read(values: Any) -> list[Any]:
        if isinstance(values, str):
            raise ValueError(values)
        return [each(value) for value in values]

    return read
