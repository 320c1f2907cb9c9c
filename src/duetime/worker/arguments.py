"""A task's arguments as JSON, by the type hints of its function.

`pack` binds a call to the signature and writes one object with an entry per argument that was given; it reads the
result back by the hints immediately, so that a wrong argument is refused in the producer and not hours later in a
worker. `unpack` turns such an object into a call. Every type that msgspec knows fits: dataclasses, Structs, TypedDicts,
datetime, UUID, Decimal, enums, bytes, containers of these; and Pydantic models, by their own rules. Arguments without
a hint are plain JSON.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

import msgspec
from msgspec import UNSET, UnsetType

from duetime.model.errors import InvalidRequest

Kind = inspect.Parameter


class PreviousResult:
    """Represents the result of the previous step in a chain; arguments with it are checked when that is known."""

    def __repr__(self) -> str:
        return "PREVIOUS"


PREVIOUS: Any = PreviousResult()


class Arguments:
    """Reads the hints when it is first used: they may name classes that come later in the module."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name = name
        self._function = function
        self.signature = inspect.signature(function)
        self._made: msgspec.json.Decoder[Any] | None = None

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments by name. Raises InvalidRequest."""
        try:
            return self.signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise InvalidRequest(f"arguments must fit {self._name}{self.signature}: {error}") from None

    def pack(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """Raises InvalidRequest."""
        bound = self.bind(args, kwargs)
        try:
            given = {name: value for name, value in bound.items() if value is not PREVIOUS}
            text = msgspec.json.encode(given, enc_hook=encode_model)
            if len(given) == len(bound):
                self._decoder.decode(text)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidRequest(f"arguments must fit {self._name}{self.signature}: {_reason(error)}") from None
        return text

    def unpack(self, data: bytes | msgspec.Raw) -> tuple[list[Any], dict[str, Any]]:
        """Raises InvalidRequest."""
        try:
            values = self._decoder.decode(data)
        except ValueError as error:
            raise InvalidRequest(f"arguments must fit {self._name}{self.signature}: {_reason(error)}") from None
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for name, parameter in self.signature.parameters.items():
            value = getattr(values, name)
            if value is UNSET:
                continue
            match parameter.kind:
                case Kind.POSITIONAL_ONLY:
                    args.append(value)
                case Kind.VAR_POSITIONAL:
                    args = [*args, *(kwargs.pop(earlier) for earlier in list(kwargs)), *value]
                case Kind.VAR_KEYWORD:
                    kwargs.update(value)
                case _:
                    kwargs[name] = value
        return args, kwargs

    @property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        if self._made is None:
            self._made = self._make_decoder()
        return self._made

    def _make_decoder(self) -> msgspec.json.Decoder[Any]:
        try:
            hints = get_type_hints(self._function, include_extras=True)
        except NameError as error:
            raise InvalidRequest(f"type hint of {self._name} cannot be resolved: {error}") from None
        fields = [_field(parameter, hints.get(name, Any)) for name, parameter in self.signature.parameters.items()]
        try:
            return msgspec.json.Decoder(
                msgspec.defstruct("Arguments", fields, forbid_unknown_fields=True, kw_only=True), dec_hook=decode_model
            )
        except TypeError as error:
            raise InvalidRequest(f"argument of {self._name}{self.signature} must fit JSON: {error}") from None


def encode_model(value: Any) -> Any:
    """For msgspec: a Pydantic model as plain values. Pydantic is not imported: its models are known by their method."""
    if callable(dump := getattr(value, "model_dump", None)):
        return dump(mode="json")
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


def decode_model(kind: Any, value: Any) -> Any:
    """For msgspec: plain values as a Pydantic model."""
    if callable(validate := getattr(kind, "model_validate", None)):
        return validate(value)
    raise TypeError(f"Expected `{kind.__name__}`, got `{type(value).__name__}`")


def _field(parameter: Kind, hint: Any) -> Any:
    match parameter.kind:
        case Kind.VAR_POSITIONAL:
            return (parameter.name, list[hint] | UnsetType, UNSET)
        case Kind.VAR_KEYWORD:
            return (parameter.name, dict[str, hint] | UnsetType, UNSET)
        case _:
            # Any already holds UNSET, and a union with it is not allowed.
            open_hint: Any = Any if hint is Any else hint | UnsetType
            return (parameter.name, hint) if parameter.default is Kind.empty else (parameter.name, open_hint, UNSET)


def _reason(error: Exception) -> str:
    """msgspec names the place as `$.to`; for a reader that is the argument `to`."""
    reason, _, place = str(error).partition(" - at `")
    return f"{place.strip('`').removeprefix('$').lstrip('.')}: {reason}" if place else reason
