"""Judges a callback's answer: the job is done, tried again later, or given up. Most rules are php-delayqueue's.

The topic's `success` says whether an answer needs a 2xx status, a body that is not empty ("" and "0" are empty), or
both. A JSON answer for which the topic's retry condition is true asks for a retry. A failed job is tried again after
the schedule's wait, or after the receiver's Retry-After if that is longer, until the cap is reached.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any

import msgspec

from duetime.model import backoff
from duetime.model.condition import Condition
from duetime.model.topic import Success, Topic

MAX_SHOWN = 1500
MAX_RETRY_AFTER_S = 86_400
GONE = 410
WHY_CHARACTERS = 300
"""How much of the last failure an alert shows, in one line: a receiver's error page may be long."""


@dataclass(frozen=True)
class CallbackAnswer:
    """A receiver's answer. Without one, `error` says why; `unreachable` means that there was not even a connection."""

    status: int = 0
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    error: str = ""
    unreachable: bool = False
    ms: int = 0

    @property
    def is_empty(self) -> bool:
        """Returns whether PHP treats the body as empty."""
        return self.body in (b"", b"0")


class Verdict(StrEnum):
    DONE = "done"
    ERROR = "error"
    EMPTY = "empty"
    CONDITION = "condition"
    STATUS = "status"


def judge(topic: Topic, condition: Condition, answer: CallbackAnswer) -> Verdict:
    if answer.error:
        return Verdict.ERROR
    if topic.success is not Success.STATUS and answer.is_empty:
        return Verdict.EMPTY
    if condition.root is not None and _asks_for_retry(condition, answer.body):
        return Verdict.CONDITION
    if topic.success is not Success.BODY and not 200 <= answer.status < 300:
        return Verdict.STATUS
    return Verdict.DONE


def _asks_for_retry(condition: Condition, body: bytes) -> bool:
    """Returns whether the condition is true for the answer. Only a JSON object or list can ask for a retry."""
    if body.lstrip()[:1] not in (b"{", b"["):
        return False
    try:
        return condition.holds(_decode(body))
    except (ValueError, RecursionError):
        return False


def _decode(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except msgspec.ValidationError:
        # The answer has a number that is too large for msgspec. PHP reads it as a float, and so do we.
        return json.loads(body, parse_int=float)


def retry_delay_ms(topic: Topic, verdict: Verdict, number: int, answer: CallbackAnswer, *, now_ms: int) -> int | None:
    """The wait before the next retry, after retry `number` failed (0: the first attempt); None after the last one."""
    endless = topic.lift_cap and verdict is Verdict.CONDITION
    if number >= topic.cap and not endless:
        return None
    wait = backoff.parse(topic.schedule).delay_ms(number + 1)
    return max(wait, retry_after_s(answer, now_ms=now_ms) * 1000)


def retry_after_s(answer: CallbackAnswer, *, now_ms: int) -> int:
    """The receiver's Retry-After in seconds, 0 without one; never more than a day."""
    text = answer.headers.get("retry-after", "").strip()
    if not text:
        return 0
    if text.isascii() and text.isdigit():
        seconds = int(text[:9])
    else:
        try:
            seconds = int(parsedate_to_datetime(text).timestamp() - now_ms / 1000) + 1
        except (ValueError, OverflowError):
            return 0
    return min(max(seconds, 0), MAX_RETRY_AFTER_S)


def describe(verdict: Verdict, answer: CallbackAnswer) -> str:
    """The answer in words, for the job's error, the dead letter and alerts."""
    if answer.error:
        return answer.error
    text = answer.body[:MAX_SHOWN].decode(errors="replace")
    match verdict:
        case Verdict.EMPTY:
            return f"HTTP {answer.status} with an empty answer {text!r}"
        case Verdict.CONDITION:
            return f"the retry condition holds for HTTP {answer.status}: {text}"
        case _:
            return f"HTTP {answer.status}: {text}"


class Streak:
    """A topic's failed attempts in a row. Times are epoch seconds, 0 for never."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self.failures = 0
        self.since = 0.0
        self.worked_at = 0.0
        self.why = ""

    def worked(self) -> None:
        self.failures = 0
        self.worked_at = self._now()

    def failed(self, why: str) -> None:
        if not self.failures:
            self.since = self._now()
        self.failures += 1
        self.why = " ".join(why[: 4 * WHY_CHARACTERS].split())[:WHY_CHARACTERS]

    def forget(self) -> None:
        """Forget the failures so far."""
        self.failures = 0

    def is_long(self, failures: int, after_s: float) -> bool:
        return self.failures >= failures and self._now() - self.since >= after_s
