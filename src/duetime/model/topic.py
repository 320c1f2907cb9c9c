"""A topic: a queue whose jobs are delivered to a callback URL. Frozen data and its checks, without I/O.

The fields are php-delayqueue's with its defaults, and some more; NEW_METHOD, NEW_SUCCESS and NEW_PHP_FIELDS are the
defaults of a topic that is created through our own API. The key is the name of the queue. `callbacks/topic_registry.py`
stores topics, and `callbacks/courier.py` delivers their jobs.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Literal
from urllib.parse import urlsplit

from msgspec import Struct

from duetime.model import backoff
from duetime.model.clock import MAX_DURATION
from duetime.model.condition import parse
from duetime.model.errors import DuetimeError, InvalidRequest
from duetime.model.job import Priority
from duetime.model.masking import mask
from duetime.model.names import is_channel, is_host, is_mail

MAX_URL = 2048
MAX_TEXT = 255
MAX_ALERTS = 20
MAX_TIMEOUT_MS = 600_000
MAX_CAP = 10_000
MAX_IN_FLIGHT = 10_000
MAX_RATE = 1_000_000
DEFAULT_CAP = 11
"""php-delayqueue's number of retries: 12 attempts over 121 minutes."""
DEFAULT_TIMEOUT_MS = 3000
DEFAULT_SCHEDULE = "odd-minutes"
DEFAULT_IN_FLIGHT = 100


class Method(StrEnum):
    """How a job is sent. GET: the body's fields as query. POST: the same as a form. JSON: a POST with the raw body."""

    GET = "GET"
    POST = "POST"
    JSON = "JSON"


class Status(StrEnum):
    """An offline topic refuses new jobs and still delivers the jobs it has."""

    ONLINE = "online"
    OFFLINE = "offline"


class Success(StrEnum):
    """Which responses count as success. STATUS: a 2xx status. BODY: a body that is not empty, as in php-delayqueue.
    BOTH: both conditions.
    """

    STATUS = "status"
    BODY = "body"
    BOTH = "2xx"


class Topic(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`key` is the queue's name, `name` the title for people; `id` numbers topics and is never used twice.

    The schedule's n-th wait precedes the n-th retry. `cap` is the number of retries, so a job is tried at most 1 + cap
    times. `lift_cap` removes this limit for retries that the condition requests. `php_fields` adds php-delayqueue's
    fields to each request. `in_flight` and `rate` (calls a second, 0 = no limit) apply to each server process.
    `halted` is the reason why deliveries are suspended, or empty. `secret` signs requests; until `old_secret_until`,
    `old_secret` signs them too, so that receivers can switch over.
    """

    key: str
    callback: str
    id: int = 0
    name: str = ""
    delay_ms: int = 0
    method: Method = Method.GET
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    retry_if: str = ""
    schedule: str = DEFAULT_SCHEDULE
    cap: int = DEFAULT_CAP
    lift_cap: bool = False
    success: Success = Success.BODY
    php_fields: bool = True
    priority: Priority = Priority.NORMAL
    alert: tuple[str, ...] = ()
    creator: str = ""
    status: Status = Status.ONLINE
    halted: str = ""
    verify_tls: bool = True
    in_flight: int = DEFAULT_IN_FLIGHT
    rate: int = 0
    secret: str = ""
    old_secret: str = ""
    old_secret_until: int = 0


NEW_METHOD = Method.JSON
NEW_SUCCESS = Success.STATUS
NEW_PHP_FIELDS = False
"""Defaults of a new topic. The php-delayqueue protocols create topics with php-delayqueue's defaults instead."""

NEW_SECRET: Literal["new"] = "new"


def check_topic(topic: Topic) -> Topic:
    """Returns its argument. Raises InvalidRequest or InvalidCondition."""
    _check_url(topic.callback)
    parse(topic.retry_if)
    try:
        backoff.parse(topic.schedule)
    except DuetimeError as error:
        raise InvalidRequest(f"topic schedule cannot be parsed: {error.message}", path="$.schedule") from None
    for name in ("name", "creator"):
        if len(getattr(topic, name)) > MAX_TEXT:
            raise InvalidRequest(f"topic {name} must have at most {MAX_TEXT} characters", path=f"$.{name}")
    _check_range(topic.delay_ms, "delay", 0, MAX_DURATION)
    _check_range(topic.timeout_ms, "timeout", 1, MAX_TIMEOUT_MS)
    _check_range(topic.cap, "cap", 0, MAX_CAP)
    _check_range(topic.in_flight, "in_flight", 1, MAX_IN_FLIGHT)
    _check_range(topic.rate, "rate", 0, MAX_RATE)
    _check_alert(topic.alert)
    return topic


def _check_alert(addresses: Sequence[str]) -> None:
    """Allows mail addresses and channel names, but no URLs: the server calls alert URLs, so only operators, who define
    channels, may choose them.
    """
    if len(addresses) > MAX_ALERTS or any(len(address) > MAX_TEXT for address in addresses):
        raise InvalidRequest(
            f"topic must have at most {MAX_ALERTS} alert addresses of at most {MAX_TEXT} characters", path="$.alert"
        )
    for address in addresses:
        if not is_mail(address) and not is_channel(address):
            raise InvalidRequest(
                f"alert address must be a mail address or the name of a channel, got {mask(address)!r}; "
                "operators add channels with: duetime alert add URL --channel NAME",
                path="$.alert",
            )


def _check_range(value: int, name: str, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidRequest(f"topic {name} must be between {least} and {most}, got {value}", path=f"$.{name}")


def _check_url(url: str) -> None:
    if len(url) > MAX_URL or not url.isascii() or not url.isprintable() or " " in url:
        raise InvalidRequest(
            f"callback URL must have at most {MAX_URL} printable ASCII characters and no blanks; encode others as %XX",
            path="$.callback",
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidRequest(f"callback must be a URL: {error}", path="$.callback") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise InvalidRequest(f"callback must be an http(s) URL with a host, got {url[:100]!r}", path="$.callback")
    if not is_host(parts.hostname):
        raise InvalidRequest(
            f"callback host must be a host name or an IP address in its usual form, got {parts.hostname[:100]!r}",
            path="$.callback",
        )
    if parts.username is not None or parts.fragment:
        raise InvalidRequest(
            f"callback URL must not contain credentials or a fragment, got {mask(url[:100])!r}", path="$.callback"
        )


def host_of(url: str) -> str:
    """Host and port of a URL: the key of the limits per host."""
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
