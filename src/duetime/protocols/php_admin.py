"""php-delayqueue's two admin addresses for scripts that call them: /add.php?op= and /check.php.

They are served on the admin port if `php_admin_token` is set, and every request must carry that token, as `token` or
as `Authorization: Bearer`. Fields have php-delayqueue's names and come in the query, as there, or in a form that is
posted. The answer is `{"code":1,"msg":"succ"}` or `{"code":0,"msg":"fail"}` with status 200; the log says why it
failed. Topics are those of `tcp_pool` and `tcp_namespace`, which the TCP protocol uses, too.
"""

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from starlette.types import Receive, Scope, Send

from duetime.alerts.problems import AlertSettings, change_settings
from duetime.alerts.senders import MailServer, mail_url
from duetime.callbacks.topic_registry import TopicAddress
from duetime.callbacks.topic_service import TopicService
from duetime.http.exchange import ClientGone
from duetime.model.errors import DuetimeError, InvalidRequest, TopicNotFound, Unauthorized
from duetime.model.job import Priority
from duetime.model.names import check_queue, is_mail
from duetime.model.topic import DEFAULT_TIMEOUT_MS, Method, Status, Topic
from duetime.protocols.asgi import read_body, send_answer
from duetime.protocols.tokens import bearer, same_secret
from duetime.stores.registry import Registry

log = logging.getLogger("duetime.php_admin")

LIMIT = 65_536
HEADERS = [(b"content-type", b"application/json; charset=utf-8")]
PRIORITIES: Mapping[str, Priority] = {"1": Priority.HIGH, "2": Priority.NORMAL, "3": Priority.LOW}
STATUSES: Mapping[str, Status] = {"1": Status.ONLINE, "2": Status.OFFLINE}
TOPICS = "dq_topic"

PhpFields = Mapping[str, str]


class PhpAdminApp:
    """An ASGI application."""

    def __init__(
        self, topics: TopicService, registry: Callable[[], Registry], *, pool: str, namespace: str, token: str
    ) -> None:
        self._topics = topics
        self._registry = registry
        self._pool = pool
        self._namespace = namespace
        self._token = token
        self._operations: Mapping[str, Callable[[PhpFields], Awaitable[None]]] = {
            "topic_add": self._save_topic,
            "del": self._delete,
            "update_status": self._set_status,
            "alert": self._set_mail_server,
            "redis_add": self._refuse_redis,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            body = await read_body(scope, receive, LIMIT)
            raw = [scope["query_string"].decode(errors="replace"), body.decode(errors="replace")]
            fields = {name: value for part in raw for name, value in parse_qsl(part, keep_blank_values=True)}
            given = fields.pop("token", "") or bearer(dict(scope["headers"]))
            if not same_secret(given, self._token):
                raise Unauthorized
            code, words = await self._answer(scope["path"], fields)
            status = 200
        except ClientGone:
            return
        except DuetimeError as error:
            log.warning("php_admin_failed", extra={"path": scope["path"], "error": error.message})
            code, words, status = 0, f"fail: {error.message}", 401 if isinstance(error, Unauthorized) else 200
        await send_answer(scope, send, status, HEADERS, json.dumps({"code": code, "msg": words}).encode())

    async def _answer(self, path: str, fields: PhpFields) -> tuple[int, str]:
        if path == "/check.php":
            return (1, "free") if await self._is_free(fields) else (2, "taken")
        operation = self._operations.get(fields.get("op", ""))
        if path != "/add.php" or operation is None:
            raise InvalidRequest(f"there is no operation {fields.get('op', '')[:40]!r} at {path[:80]!r}")
        await operation(fields)
        return 1, "succ"

    async def _is_free(self, fields: PhpFields) -> bool:
        """Returns whether no topic but the one with the given id has this key."""
        own = _number(fields, "id")
        topics = await self._topics.topics.list_topics(self._pool, self._namespace)
        return all(topic.key != fields.get("topic", "").strip() or topic.id == own for topic in topics)

    async def _save_topic(self, fields: PhpFields) -> None:
        """Add a topic, or edit the one with the given id. The key of a topic cannot be changed: it names its queue."""
        number, values = _number(fields, "id"), _topic_values(fields)
        if not number:
            key = fields.get("topic", "").strip()
            callback: str = values.pop("callback", "")
            await self._topics.add(self._address(key), Topic(key=key, callback=callback, **values))
            return
        address = await self._find(number)
        if fields.get("topic", address.queue.name).strip() != address.queue.name:
            raise InvalidRequest("key of a topic cannot be changed: add another topic")
        await self._topics.edit(address, values)

    async def _delete(self, fields: PhpFields) -> None:
        await self._topics.remove(await self._find_row(fields))

    async def _set_status(self, fields: PhpFields) -> None:
        status = STATUSES.get(fields.get("status", ""))
        if status is None:
            raise InvalidRequest("status must be 1 (online) or 2 (offline)")
        await self._topics.set_status(await self._find_row(fields), status)

    async def _set_mail_server(self, fields: PhpFields) -> None:
        """The mail server, and the mail addresses that are notified of every problem; addresses of other kinds stay."""
        mails = _mails(fields)

        def change(old: AlertSettings) -> AlertSettings:
            user, known = fields.get("user", "").strip(), old.mail_server
            port = _number(fields, "port")
            server = MailServer(
                fields.get("host", "").strip(),
                user if is_mail(user) or known is None else known.sender,
                port,
                user,
                fields.get("pwd", known.password if known else ""),
                security="ssl" if port == 465 else known.security if known else "starttls",
            )
            if not server.host or not server.sender:
                raise InvalidRequest("mail server must have a host and a user")
            mail_url(server, server.sender)
            others = [address for address in old.addresses if not is_mail(address)]
            addresses = old.addresses if mails is None else (*others, *mails)
            return msgspec.structs.replace(old, mail_server=server, addresses=tuple(dict.fromkeys(addresses)))

        await change_settings(self._registry(), change)

    async def _refuse_redis(self, fields: PhpFields) -> None:
        raise InvalidRequest("stores cannot be changed here: name them in duetime.toml and send HUP")

    # --- topics by their number

    def _address(self, key: str) -> TopicAddress:
        return TopicAddress(self._pool, check_queue(self._namespace, key))

    async def _find_row(self, fields: PhpFields) -> TopicAddress:
        if fields.get("table") != TOPICS:
            raise InvalidRequest(f"the table {fields.get('table', '')[:40]!r} cannot be changed here; {TOPICS} can")
        return await self._find(_number(fields, "id"))

    async def _find(self, number: int) -> TopicAddress:
        for topic in await self._topics.topics.list_topics(self._pool, self._namespace):
            if topic.id == number:
                return self._address(topic.key)
        raise TopicNotFound(f"no topic has the number {number}")


def _number(fields: PhpFields, name: str) -> int:
    """0 for a field that is missing or empty. Raises InvalidRequest."""
    text = fields.get(name, "").strip() or "0"
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise InvalidRequest(f"{name} must be a number, got {text[:40]!r}")
    return int(text)


def _topic_values(fields: PhpFields) -> dict[str, Any]:
    """The fields that were given, by the names that a topic has here. Raises InvalidRequest."""
    values: dict[str, Any] = {}
    for theirs, ours in {
        "t_name": "name",
        "callback": "callback",
        "re_notify_flag": "retry_if",
        "createor": "creator",
    }.items():
        if theirs in fields:
            values[ours] = fields[theirs].strip()
    if "delay" in fields:
        values["delay_ms"] = _number(fields, "delay") * 1000
    if "timeout" in fields:
        values["timeout_ms"] = _number(fields, "timeout") or DEFAULT_TIMEOUT_MS
    if "method" in fields:
        values["method"] = _choice(fields, "method", {one.value: one for one in Method})
    if "priority" in fields:
        values["priority"] = _choice(fields, "priority", PRIORITIES)
    if "email" in fields:
        values["alert"] = tuple(fields["email"].replace(",", " ").split())
    return values


def _choice(fields: PhpFields, name: str, choices: Mapping[str, Any]) -> Any:
    given = fields[name].strip().upper()
    if given not in choices:
        raise InvalidRequest(f"{name} must be one of {', '.join(choices)}, got {given[:40]!r}")
    return choices[given]


def _mails(fields: PhpFields) -> list[str] | None:
    """The comma list `ext[redis]`, also as the JSON text `ext`; None if neither was given. Raises InvalidRequest."""
    text = fields.get("ext[redis]")
    if text is None and "ext" in fields:
        try:
            text = msgspec.json.decode(fields["ext"], type=dict[str, str]).get("redis")
        except msgspec.DecodeError as error:
            raise InvalidRequest(f"ext: {error}") from None
    if text is None:
        return None
    mails = text.replace(",", " ").split()
    for mail in mails:
        if not is_mail(mail):
            raise InvalidRequest(f"mail address must have the form name@host, got {mail[:80]!r}")
    return mails
