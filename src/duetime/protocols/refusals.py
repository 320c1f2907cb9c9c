"""Errors that the HTTP server answers by itself, before any application sees the request, in its protocol's form."""

import msgspec

from duetime.model.errors import DuetimeError, Forbidden, InvalidRequest, Overloaded
from duetime.wire.messages import ErrorOut

OURS: dict[int, type[DuetimeError]] = {403: Forbidden, 503: Overloaded}
"""The errors of some statuses; every other status is an InvalidRequest."""


def refusal_body(path: bytes, status: int, reason: str) -> tuple[bytes, bytes]:
    """Content type and body."""
    if path != b"/v1" and not path.startswith(b"/v1/"):
        return b"application/json", msgspec.json.encode({"error": reason})
    kind = OURS.get(status, InvalidRequest)
    title = (kind.__doc__ or "").split("\n", 1)[0]
    return b"application/problem+json", msgspec.json.encode(ErrorOut(kind.code, title, status, detail=reason))
