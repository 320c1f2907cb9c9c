"""php-delayqueue's three commands, from decoded request to reply.

A reply is `{"code": 1, "msg": "succ", "data": ...}` or code 0 and "fail"; the reason is in the log, because the
protocol cannot carry it. An unknown command has no reply at all.
"""

import hmac
import logging
from dataclasses import dataclass
from typing import Any

import msgspec

from duetime.callbacks.topic_registry import TopicAddress
from duetime.callbacks.topic_service import TopicJobs
from duetime.model.errors import DuetimeError, InvalidRequest, Unauthorized
from duetime.model.job import Event
from duetime.model.names import check_queue

log = logging.getLogger("duetime.protocols.tcp")


@dataclass(frozen=True)
class CommandRules:
    """Where the topics of this protocol are. `update_fails`: an add that replaces a job answers code 0, as the original
    does. With a token, every request must carry it under the key `token`.
    """

    pool: str
    namespace: str
    token: str = ""
    update_fails: bool = False


def reply(done: bool, data: Any = ()) -> dict[str, Any]:
    return {"code": int(done), "msg": "succ" if done else "fail", "data": data}


FAILED = reply(False)


class Commands:
    def __init__(self, topic_jobs: TopicJobs, rules: CommandRules) -> None:
        self._topic_jobs = topic_jobs
        self._rules = rules

    async def answer(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """None where the protocol has no reply."""
        command = request.get("cmd")
        if command not in ("add", "get", "del"):
            log.info("unknown_command", extra={"command": repr(command)[:40]})
            return None
        try:
            self._check_token(request)
            address, job_id = self._address(request), _text(request, "id")
            match command:
                case "add":
                    return await self._add(address, job_id, request)
                case "get":
                    return reply(True, _as_kept(await self._topic_jobs.get(address, job_id)))
                case _:
                    await self._topic_jobs.delete(address, job_id)
                    return reply(True)
        except DuetimeError as error:
            log.info("refused", extra={"command": command, "code": error.code, "error": error.message})
            return FAILED

    async def _add(self, address: TopicAddress, job_id: str, request: dict[str, Any]) -> dict[str, Any]:
        fix_time = request.get("fix_time") or ""
        if not isinstance(fix_time, str):
            raise InvalidRequest("fix_time is text")
        moved = await self._topic_jobs.add(address, job_id, _body(request.get("body")), fix_time=fix_time)
        return reply(moved.event is not Event.REPLACED or not self._rules.update_fails)

    def _address(self, request: dict[str, Any]) -> TopicAddress:
        return TopicAddress(self._rules.pool, check_queue(self._rules.namespace, _text(request, "topic")))

    def _check_token(self, request: dict[str, Any]) -> None:
        given = request.get("token")
        given = given if isinstance(given, str) else ""
        if self._rules.token and not hmac.compare_digest(given.encode(), self._rules.token.encode()):
            raise Unauthorized


def _text(request: dict[str, Any], key: str) -> str:
    """PHP clients send numbers where they have numbers."""
    value = request.get(key)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InvalidRequest(f"{key} is text or a number")
    return str(value)


def _body(value: Any) -> dict[str, Any]:
    """An object; an empty array, which is how PHP writes an empty object; or, as the Java client sends it, text that
    holds an object.
    """
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            value = None
    if value == []:
        return {}
    if not isinstance(value, dict):
        raise InvalidRequest("body is an object")
    return value  # pyright: ignore[reportUnknownVariableType]  # JSON's keys are text


def _as_kept(body: bytes) -> Any:
    """Bodies of other protocols may be anything; what is not JSON is shown as text."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return body.decode(errors="replace")
