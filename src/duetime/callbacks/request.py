"""Writes one job of a topic as an HTTP request.

With the method JSON, the body of the job is the body of the request, byte for byte. With GET and POST the fields of
the body's top level go into the query or a form; a body that is not a JSON object becomes one field called `body`, or
`body_b64` if it is not text either. Headers carry the job's id, the number of the attempt and the due time.

A topic with `php_fields` gets php-delayqueue's own fields as well: `notify_time` (when the job is due), `dq_set_time`
(when it was added) and, from the first retry on, `exp_notify_nums` (the number of this retry). With JSON, these make
the request a JSON object, or a JSON text where the body is not an object.
"""

import re
from base64 import b64encode
from collections.abc import Mapping
from datetime import datetime, tzinfo
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus

import msgspec

from duetime import __version__
from duetime.model.job import Delivery
from duetime.model.topic import Method, Topic

USER_AGENT = f"duetime/{__version__}"
FORM = "application/x-www-form-urlencoded"
JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
BYTES = "application/octet-stream"

ID_HEADER = "webhook-id"
ATTEMPT_HEADER = "duetime-attempt"
DUE_HEADER = "duetime-due-at"

SHORT = 20
"""The length of a time, and one more."""
_quote_short = lru_cache(maxsize=1024)(quote_plus)
_PLAIN = re.compile(r"[A-Za-z0-9_.-]*", re.ASCII)
_VISIBLE = re.compile(r"[!-~]+")
_RETRY = re.compile(r"retry (\d{1,9}): ")

_decode_fields = msgspec.json.Decoder(dict[str, Any]).decode


class CallbackRequest(NamedTuple):
    """A request without the headers that the caller adds: those of every call, and the signature."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes = b""


def retries_of(delivery: Delivery) -> int:
    """How many retries there were, this one included; 0 for the first attempt.

    The number is in the error of the last release, because neither a crash nor a give-back may count as a
    retry. If another consumer released the job, the number is taken from its used tries.
    """
    if not delivery.error:
        return 0
    found = _RETRY.match(delivery.error)
    return int(found[1]) if found else max(delivery.used - 1, 0)


def retry_error(number: int, reason: str) -> str:
    """The error to release a job with, from which `retries_of` reads the number."""
    return f"retry {number}: {reason}"


def clock_text(at_ms: int, zone: tzinfo | None) -> str:
    """`2026-11-15 09:00:00`, without the name of a zone; in the server's zone if `zone` is None."""
    return _second_text(at_ms // 1000, zone)


@lru_cache(maxsize=1024)
def _second_text(second: int, zone: tzinfo | None) -> str:
    return datetime.fromtimestamp(second, zone).strftime("%Y-%m-%d %H:%M:%S")


def fields_of(body: bytes) -> dict[str, Any] | None:
    """The fields of a body that is a JSON object, else None."""
    if not body.lstrip().startswith(b"{"):
        return None
    try:
        return _decode_fields(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def write_request(topic: Topic, delivery: Delivery, zone: tzinfo | None) -> CallbackRequest:
    """A call that is repeated after a crash has the same number of the attempt. An id with anything but visible ASCII
    characters is percent-encoded.
    """
    job_id, url = delivery.lease.id, topic.callback
    headers = {
        ID_HEADER: job_id if _VISIBLE.fullmatch(job_id) else quote(job_id),
        ATTEMPT_HEADER: str(retries_of(delivery) + 1),
        DUE_HEADER: str(delivery.due_at),
    }
    content_type, content = _content(topic, delivery, zone)
    if topic.method is Method.GET:
        return CallbackRequest("GET", f"{url}{'&' if '?' in url else '?'}{content.decode()}", headers)
    return CallbackRequest("POST", url, {"content-type": content_type, **headers}, content)


def _content(topic: Topic, delivery: Delivery, zone: tzinfo | None) -> tuple[str, bytes]:
    """The content type and the content, which for GET is the query."""
    body, sends_json = delivery.body, topic.method is Method.JSON
    if sends_json and not topic.php_fields:
        return (JSON if _is_json(body) else BYTES if _text(body) is None else TEXT), body
    fields = fields_of(body)
    if fields is None:
        text = _text(body)
        if text is not None and sends_json:
            # Valid JSON is sent as it is and other text as a JSON string, so the receiver always gets JSON.
            return JSON, body if _is_json(body) else msgspec.json.encode(text)
        fields = {"body_b64": b64encode(body).decode()} if text is None else {"body": text}
    elif topic.php_fields:
        if number := retries_of(delivery):
            fields |= {"exp_notify_nums": number, "notify_time": clock_text(delivery.due_at, zone)}
        fields.setdefault("notify_time", clock_text(delivery.due_at, zone))
        fields.setdefault("dq_set_time", clock_text(delivery.lease.born, zone))
    return (JSON, msgspec.json.encode(fields)) if sends_json else (FORM, _flat(fields).encode())


def _is_json(body: bytes) -> bool:
    try:
        msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _text(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def _flat(fields: Mapping[str, Any]) -> str:
    return "&".join([f"{_quoted_plus(name)}={_quoted_plus(_field(value))}" for name, value in fields.items()])


def _quoted_plus(text: str) -> str:
    """As PHP's urlencode. Most names and many values need no quoting, which the pattern finds out quickly; the times,
    which all calls carry, are the same for all jobs of a second.
    """
    if _PLAIN.fullmatch(text):
        return text
    return _quote_short(text) if len(text) <= SHORT else quote_plus(text)


def _field(value: object) -> str:
    """A value as PHP writes it into a form; nested values are written as JSON, so that they are not lost."""
    match value:
        case str():
            return value
        case None:
            return ""
        case bool():
            return "1" if value else "0"
        case _:
            return msgspec.json.encode(value).decode()


def curl_command(request: CallbackRequest) -> str:
    """A command that repeats the call, for people."""
    parts = ["curl", "-X", request.method]
    for name, value in request.headers.items():
        parts += ["-H", _shell(f"{name}: {value}")]
    if request.body:
        parts += ["--data-raw", _shell(request.body.decode(errors="replace"))]
    return " ".join([*parts, _shell(request.url)])


def _shell(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
