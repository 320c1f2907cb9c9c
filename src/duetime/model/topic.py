"""A topic: a queue whose jobs are delivered to a callback URL.

This is frozen data and its checks, without I/O. A topic has php-delayqueue's fields with its defaults, and some more;
what a new topic does by default is in NEW_METHOD, NEW_SUCCESS and NEW_PHP_FIELDS. Its key is the name of its queue.
`callbacks/topic_registry.py` stores topics, and `callbacks/courier.py` delivers their jobs.
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
"""As many retries as php-delayqueue makes: 12 attempts over 121 minutes."""
DEFAULT_TIMEOUT_MS = 3000
DEFAULT_SCHEDULE = "odd-minutes"
DEFAULT_IN_FLIGHT = 100


class Method(StrEnum):
    """How a job is sent. GET: the body's fields in the query. POST: as a form. JSON: the body as it is, in a POST."""

    GET = "GET"
    POST = "POST"
    JSON = "JSON"


class Status(StrEnum):
    """An offline topic refuses new jobs; those that it has are still delivered."""

    ONLINE = "online"
    OFFLINE = "offline"


class Success(StrEnum):
    """Which answers are a success. STATUS: those with a 2xx status. BODY, as in php-delayqueue: any that is not empty.
    BOTH: one that is not empty and has a 2xx status.
    """

    STATUS = "status"
    BODY = "body"
    BOTH = "2xx"


class Topic(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`key` is the queue's name, `name` the title for people; `id` numbers topics and is never used twice.

    The n-th retry comes after the schedule's n-th wait. `cap` is the number of retries, so a job is tried at most 1
    + cap times. `lift_cap`: retries that the condition asked for have no end. `php_fields` adds php-delayqueue's
    fields to what is sent. `in_flight` and `rate` (calls a second, 0 = no limit) hold for each server process.
    `halted` says why nothing is delivered; it is empty while jobs are delivered. `secret` signs; `old_secret` signs
    too until `old_secret_until`, while receivers change over.
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
"""What a new topic does unless it is told otherwise. php-delayqueue's own doors make topics with its rules."""

NEW_SECRET: Literal["new"] = "new"


def check_topic(topic: Topic) -> Topic:
    """Returns its argument. Raises InvalidRequest or InvalidCondition."""
    _check_url(topic.callback)
    parse(topic.retry_if)
    _check_schedule(topic.schedule)
    for name, most in (("name", MAX_TEXT), ("creator", MAX_TEXT)):
        if len(getattr(topic, name)) > most:
            raise InvalidRequest(f"the {name} of a topic has at most {most} characters", path=f"$.{name}")
    _check_range(topic.delay_ms, "delay", 0, MAX_DURATION)
    _check_range(topic.timeout_ms, "timeout", 1, MAX_TIMEOUT_MS)
    _check_range(topic.cap, "cap", 0, MAX_CAP)
    _check_range(topic.in_flight, "in_flight", 1, MAX_IN_FLIGHT)
    _check_range(topic.rate, "rate", 0, MAX_RATE)
    _check_alert(topic.alert)
    return topic


def _check_alert(addresses: Sequence[str]) -> None:
    """Allow mail addresses and names of channels. URLs are for operators only, because the server calls them, and not
    everybody who may edit topics may choose what it calls.
    """
    if len(addresses) > MAX_ALERTS or any(len(address) > MAX_TEXT for address in addresses):
        raise InvalidRequest(
            f"a topic has at most {MAX_ALERTS} alert addresses of at most {MAX_TEXT} characters", path="$.alert"
        )
    for address in addresses:
        if not is_mail(address) and not is_channel(address):
            raise InvalidRequest(
                f"an alert address of a topic is a mail address or the name of a channel: {mask(address)!r}; "
                "operators add channels: duetime alert add URL --channel NAME",
                path="$.alert",
            )


def _check_range(value: int, name: str, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidRequest(f"the {name} of a topic lies between {least} and {most}: {value}", path=f"$.{name}")


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
        raise InvalidRequest(f"the callback is not a URL: {error}", path="$.callback") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise InvalidRequest(f"the callback is an http or https URL with a host: {url[:100]!r}", path="$.callback")
    if not is_host(parts.hostname):
        raise InvalidRequest(
            f"the host of the callback is neither a name nor an address in its usual form: {parts.hostname[:100]!r}",
            path="$.callback",
        )
    if parts.username is not None or parts.fragment:
        raise InvalidRequest("the callback has no user, password or fragment in it", path="$.callback")


def _check_schedule(text: str) -> None:
    try:
        backoff.parse(text)
    except DuetimeError as error:
        raise InvalidRequest(f"the schedule cannot be read: {error.message}", path="$.schedule") from None


def host_of(url: str) -> str:
    """Host and port of a URL; callbacks with the same ones share the limits per host."""
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
