"""What ouqiang's clients send and get. Every answer has status 200; `code` 0 is success."""

from typing import Any

import msgspec
from msgspec import Struct

from duetime.model.errors import InvalidRequest
from duetime.model.names import check_id, check_queue

MAX_DELAY_S = 2**31
MAX_TTR_S = 86_400


def not_empty(name: str, text: str) -> str:
    """The text, trimmed. Raises InvalidRequest if nothing is left."""
    if not (trimmed := text.strip()):
        raise InvalidRequest(f"{name} must not be empty")
    return trimmed


class PushMessage(Struct):
    """`delay` and `ttr` are seconds."""

    topic: str = ""
    id: str = ""
    delay: int = 0
    ttr: int = 0
    body: str = ""

    def checked(self, namespace: str) -> "PushMessage":
        """Trimmed, and within the ranges of the protocol and of our names. Raises InvalidRequest."""
        job_id, topic = not_empty("id", self.id), not_empty("topic", self.topic)
        push = PushMessage(topic, job_id, self.delay, self.ttr, self.body.strip())
        if not 1 <= push.delay <= MAX_DELAY_S:
            raise InvalidRequest(f"delay is 1 to {MAX_DELAY_S} seconds")
        if not 1 <= push.ttr <= MAX_TTR_S:
            raise InvalidRequest(f"ttr is 1 to {MAX_TTR_S} seconds")
        check_id(push.id)
        check_queue(namespace, push.topic)
        return push


class Pop(Struct):
    """One topic, or several with commas between them: the first has priority."""

    topic: str = ""


class Named(Struct):
    id: str = ""


class Popped(Struct, frozen=True):
    id: str
    body: str


class FoundJob(Struct, frozen=True):
    """`delay` is the unix second at which the job is due."""

    topic: str
    id: str
    delay: int
    ttr: int
    body: str


def parse(body: bytes, kind: type[Struct]) -> Any:
    """Raises InvalidRequest that says where it does not fit."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the request is not what was expected: {error}") from None


def answer(code: int, message: str, data: Popped | FoundJob | None = None) -> bytes:
    return msgspec.json.encode({"code": code, "message": message, "data": data})
