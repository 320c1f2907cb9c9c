"""Laravel's job payload: a JSON text that PHP and Python both read, kept byte for byte.

Laravel's own Lua re-encodes a payload each time a job is reserved, and damages large integers, floats and empty lists
on the way. Here only the digits of the top-level `attempts` change (`next_attempt`); everything else stays as the
producer wrote it.
"""

import json
import math
import re
import secrets
import string
import time
import uuid
from collections.abc import Sequence
from typing import Any, TypedDict

import msgspec
from msgspec import UNSET, Struct, UnsetType

from duetime.model.errors import NOT_JSON, InvalidRequest
from duetime.model.job import MAX_TRIES

ALPHABET = string.ascii_letters + string.digits
TOKENS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]]', re.DOTALL)
VALUE = re.compile(rb"\s*:\s*(\d+)(?=\s*[,}])")


class LaravelPayload(Struct, rename={"name": "job"}):
    """A payload as Laravel 5.4 to 13 writes it. Fields that are not listed stay in the text and are not read.
    `attempts` counts the reservations so far; a table has it in a column instead. Times are unix seconds.
    """

    name: str
    data: Any = None
    displayName: str | None = None
    uuid: str | None = None
    id: str | None = None
    attempts: int = 0
    maxTries: int | None = None
    maxExceptions: int | None = None
    backoff: str | int | UnsetType | None = UNSET
    delay: float | None = None
    retryUntil: float | None = None
    timeoutAt: float | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names by which a handler can be registered, the most specific first: of a PHP command, its class."""
        bare = self.name.partition("@")[0]
        command = self.data.get("commandName") if hasattr(self.data, "get") else None
        return tuple(name for name in (command, self.name, self.displayName, bare) if isinstance(name, str))

    def has_ended(self, attempts: int, tries: int) -> bool:
        """True if no further attempt may begin after this many: `retryUntil` has passed or, without one, `maxTries` (or
        else `tries`) are used up. Zero tries are unlimited.
        """
        if ends_at := self.retryUntil or self.timeoutAt:
            return ends_at <= time.time()
        most = tries if self.maxTries is None else self.maxTries
        return 0 < most <= attempts

    def tries_after(self, attempts: int) -> int:
        """The tries that are left after this many attempts: at least one, and 0 for unlimited tries."""
        if self.maxTries == 0 or self.retryUntil or self.timeoutAt:
            return 0
        return min(max(1, (self.maxTries or 1) - attempts), MAX_TRIES)

    def backoff_s(self, attempt: int, default_s: int) -> int:
        """The wait after a failed attempt: the entry of that attempt, else the last one."""
        # Before 8.0 it was called delay, which since 12.11 is the wait before the first attempt.
        backoff = self.delay if self.backoff is UNSET else self.backoff
        steps = str(backoff).split(",") if backoff not in (None, "") else []
        try:
            return max(0, int(float(steps[min(attempt, len(steps)) - 1]))) if steps else default_s
        except (ValueError, OverflowError):
            return default_s


# Not strict: PHP runs a job whose tries are written as text.
_decoder = msgspec.json.Decoder(LaravelPayload, strict=False)


def read_payload(text: bytes) -> LaravelPayload:
    """Raises InvalidRequest for a text that no Laravel worker could run either."""
    try:
        return _decoder.decode(text)
    except NOT_JSON as error:
        raise InvalidRequest(f"Laravel payload must be a JSON object with a job name: {error}") from None


def next_attempt(text: bytes, by: int = 1) -> bytes:
    """The text with the top-level `attempts` raised. Raises InvalidRequest if it has no whole `attempts`."""
    attempts = read_payload(text).attempts
    found = _top_level_attempts(text)
    if found is None or found[2] != attempts:
        raise InvalidRequest("Laravel payload must have a whole number as top-level attempts")
    start, end, number = found
    return b"%b%d%b" % (text[:start], number + by, text[end:])


def _top_level_attempts(text: bytes) -> tuple[int, int, int] | None:
    """(start, end, value) of the last one, which is the one that JSON readers use. Linear in the text."""
    depth, found = 0, None
    for token in TOKENS.finditer(text):
        match token[0]:
            case b"{" | b"[":
                depth += 1
            case b"}" | b"]":
                depth -= 1
            case b'"attempts"' if depth == 1 and (value := VALUE.match(text, token.end())):
                found = value.start(1), value.end(1), int(value[1])
            case _:
                pass
    return found


class JobOptions(TypedDict, total=False):
    """Options of one Laravel job. Times are whole seconds."""

    tries: int
    backoff: Sequence[int]
    timeout: int
    max_exceptions: int


NO_OPTIONS: JobOptions = {}


def make_payload(
    job: str,
    data: Any,
    now_s: float,
    *,
    delay_s: float | None = None,
    options: JobOptions = NO_OPTIONS,
    job_id: str | None = None,
) -> bytes:
    """A string job (`Class@method`, or `Class` for its method `fire`), the form that PHP and Python share.
    With a `job_id`, uuid and id depend on nothing else.
    """
    if not job or not job.isprintable():
        raise InvalidRequest(f"Laravel job must be named Class@method, got {job!r}")
    unique = uuid.uuid5(uuid.NAMESPACE_OID, job_id) if job_id else uuid.uuid4()
    fields = {
        "uuid": str(unique),
        "displayName": job.partition("@")[0],
        "job": job,
        "maxTries": options.get("tries"),
        "maxExceptions": options.get("max_exceptions"),
        "failOnTimeout": False,
        "backoff": ",".join(map(str, options.get("backoff", ()))) or None,
        "timeout": options.get("timeout"),
        "data": data,
        "createdAt": int(now_s),
        "id": job_id or "".join(secrets.choice(ALPHABET) for _ in range(32)),
        "attempts": 0,
        "delay": None if delay_s is None else math.ceil(delay_s),
    }
    try:
        return json.dumps(fields, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"Laravel job data must be JSON: {error}") from None


def as_laravel_text(body: bytes, job_id: str, *, handler: str | None, now_s: float) -> bytes:
    """A body of ours for a PHP worker. One that is a payload already (a task, or a job that came from Laravel) keeps
    its fields and gets `id` and `attempts`. Any other becomes the data of `handler`; InvalidRequest without a handler.
    """
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        read_payload(body)
    except (*NOT_JSON, InvalidRequest):
        if handler is None:
            raise InvalidRequest(
                f"job {job_id!r} is no Laravel payload: give the PHP handler that runs it, Class@method"
            ) from None
        return make_payload(handler, _plain_data(body), now_s, job_id=job_id)
    return msgspec.json.encode({**fields, "id": job_id, "attempts": 0})


def _plain_data(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except NOT_JSON:
        pass
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("a body that is neither JSON nor text cannot be sent to Laravel") from None
