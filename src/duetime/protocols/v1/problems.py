"""Errors as replies: problem+json with the stable code of the error tree, and what a client should know beside it."""

import msgspec

from duetime.model.errors import (
    DuetimeError,
    InvalidRequest,
    MethodNotAllowed,
    Overloaded,
    StoreUnavailable,
    TooManyRequests,
    Unauthorized,
)
from duetime.protocols.v1.request import Reply
from duetime.wire.convert import error_out

PROBLEM = b"application/problem+json"
MAX_DETAIL = 1000
RETRY_AFTER_S = 1


def reply_to(error: DuetimeError) -> Reply:
    message = error_out(error)
    if len(message.detail) > MAX_DETAIL:
        # Some details quote the request, which may be long.
        message.detail = f"{message.detail[:MAX_DETAIL]} ..."
    return Reply(error.status, message, headers=_headers(error), content_type=PROBLEM)


def _headers(error: DuetimeError) -> list[tuple[bytes, bytes]]:
    match error:
        case MethodNotAllowed():
            return [(b"allow", ", ".join(error.fields["allow"]).encode())]
        case Unauthorized():
            return [(b"www-authenticate", b'Bearer realm="duetime"')]
        case StoreUnavailable() | TooManyRequests() | Overloaded():
            wait = error.fields.get("retry_after_s", RETRY_AFTER_S)
            return [(b"retry-after", str(wait).encode())]
        case _:
            return []


def invalid(error: Exception, what: str) -> InvalidRequest:
    """What the decoder refused; `path` among the fields says where."""
    if isinstance(error, RecursionError):
        return InvalidRequest(f"the {what} is nested too deeply")
    if not isinstance(error, msgspec.ValidationError):
        return InvalidRequest(f"the {what} is not JSON: {error}")
    problem, at, path = str(error).rpartition(" - at `")
    if not at or not path.endswith("`"):
        return InvalidRequest(f"the {what} is not valid: {error}", path="$")
    path = path.removesuffix("`")
    return InvalidRequest(f"the {what} is not valid at {path}: {problem}", path=path)


def internal() -> DuetimeError:
    """The answer to a crash: the traceback is in the log, under the request id that the client gets."""
    return DuetimeError("the server failed; its log says more under the X-Request-ID of this reply")
