"""How the bytes of a body or a result stand in a message: one rule for every message of the API, both ways.

A JSON object or array stands as JSON, byte for byte; any other text as a string; any other bytes in base64, in a
field of their own. So `{"to": "ann"}` comes back as it was sent, and so does text, unless the text itself is an
object or an array. A number, true, false and null are refused as a body: kept as bytes, they could not be told from
the same text. Costs a fixed number of passes over the bytes.
"""

import base64
import binascii
import re
from array import array
from itertools import accumulate

import msgspec
from msgspec import UNSET, Raw, UnsetType

from duetime.model.errors import InvalidRequest

MAX_DEPTH = 60
"""JSON that is nested deeper stands as text: many readers give up at 64 levels, and would lose the whole message."""

_any_json = msgspec.json.Decoder(Raw)
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_LEVELS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[{]}"))


def write(body: bytes) -> tuple[Raw | UnsetType, str | UnsetType]:
    """The fields `body` and `body_b64`, or `result` and `result_b64`: one of the two."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return UNSET, base64.b64encode(body).decode()
    return Raw(body if _stands_as_json(body) else msgspec.json.encode(text)), UNSET


def read(value: Raw | UnsetType, b64: str | UnsetType, what: str = "body") -> bytes:
    """The bytes of the two fields, none if neither is given. `what` is the name of the first one, for errors."""
    if value is not UNSET and b64 is not UNSET:
        raise InvalidRequest.not_both(what, f"{what}_b64")
    if b64 is not UNSET:
        return _unbase64(b64, what)
    if value is UNSET:
        return b""
    raw = bytes(value)
    try:
        if raw.startswith(b'"'):
            return msgspec.json.decode(raw, type=str).encode()
        # The decoder passes over a raw value without reading its strings; JSON is UTF-8 throughout.
        text = raw.decode()
    except (msgspec.DecodeError, UnicodeError):
        raise InvalidRequest(f"the {what} is not valid text") from None
    if not raw.startswith((b"{", b"[")):
        raise InvalidRequest(f'{what} must be text, an object or an array, got {text:.40}; as text it is "{text:.40}"')
    return raw


def _stands_as_json(body: bytes) -> bool:
    """Checks text. White space around the value would get lost, so a body with any stands as text."""
    if (body[:1], body[-1:]) not in ((b"{", b"}"), (b"[", b"]")):
        return False
    try:
        _any_json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return False
    if body.count(b"{") + body.count(b"[") <= MAX_DEPTH:
        return True
    steps = _STRING.sub(b"", body).translate(_LEVELS, _NO_BRACKETS)
    return max(accumulate(array("b", steps))) <= MAX_DEPTH


def _unbase64(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest(f"{what}_b64 is not base64") from None
