"""Calls about topics: queues whose jobs a server delivers to a callback URL. No I/O."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Raw

from duetime.callbacks.topic_registry import TopicAddress
from duetime.callbacks.topic_service import TopicService
from duetime.client.call import Call, Request
from duetime.client.job_building import encode_json
from duetime.model.errors import InvalidRequest
from duetime.model.job import Moved
from duetime.model.names import DEFAULT_POOL, check_queue
from duetime.model.topic import Status
from duetime.wire import convert, messages
from duetime.wire.convert import change_of, topic_of
from duetime.wire.messages import AddIn, CountersOut, SampleIn, SampleOut, TopicChangeIn, TopicIn, TopicOut, TopicsOut

Answer = TypeVar("Answer")
Message = TypeVar("Message", bound=msgspec.Struct)

MAX_WAIT_MS = 600_000
"""A sample call takes as long as its topic allows."""


def read_fields(fields: Mapping[str, Any], kind: type[Message]) -> Message:
    """Text is read as the field's type, so that a shell can write any of them. Raises InvalidRequest."""
    if unknown := [name for name in fields if name not in kind.__struct_fields__]:
        raise InvalidRequest(f"there is no field {unknown[0]!r}; there are {', '.join(kind.__struct_fields__)}")
    try:
        return msgspec.convert(dict(fields), kind, strict=False)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise InvalidRequest(str(error)) from None


def list_topics(namespace: str) -> Call[list[TopicOut]]:
    return Call(
        lambda: Request("GET", _path(namespace)),
        lambda reply: msgspec.json.decode(reply, type=TopicsOut).topics,
        lambda engine: TopicService.of_engine(engine).list_topics(DEFAULT_POOL, namespace),
        repeatable=True,
    )


def counters(namespace: str) -> Call[CountersOut]:
    return Call(
        lambda: Request("GET", f"/v1/namespaces/{quote(namespace, safe='')}/topic-counters"),
        lambda reply: msgspec.json.decode(reply, type=CountersOut),
        lambda engine: TopicService.of_engine(engine).counters(DEFAULT_POOL, namespace),
        repeatable=True,
    )


def add(namespace: str, message: TopicIn) -> Call[TopicOut]:
    address = _address(namespace, message.topic)
    return _one(
        lambda: Request("POST", _path(namespace), msgspec.json.encode(message)),
        lambda service: service.add(address, topic_of(message)),
    )


def get(namespace: str, key: str) -> Call[TopicOut]:
    address = _address(namespace, key)
    return _one(lambda: Request("GET", _path(namespace, key)), lambda service: service.get(address), repeatable=True)


def edit(namespace: str, key: str, message: TopicChangeIn) -> Call[TopicOut]:
    address = _address(namespace, key)
    return _one(
        lambda: Request("PATCH", _path(namespace, key), msgspec.json.encode(message)),
        lambda service: service.edit(address, change_of(message)),
        repeatable=message.secret is UNSET,
    )


def set_status(namespace: str, key: str, status: Status) -> Call[TopicOut]:
    address = _address(namespace, key)
    return _one(
        lambda: Request("POST", _path(namespace, key, str(status))),
        lambda service: service.set_status(address, status),
        repeatable=True,
    )


def remove(namespace: str, key: str) -> Call[TopicOut]:
    address = _address(namespace, key)
    return _one(lambda: Request("DELETE", _path(namespace, key)), lambda service: service.remove(address))


def sample(namespace: str, key: str, body: bytes) -> Call[SampleOut]:
    address = _address(namespace, key)
    message = SampleIn(_raw(body) if body else UNSET)

    return Call(
        lambda: Request("POST", _path(namespace, key, "test"), msgspec.json.encode(message)),
        lambda reply: msgspec.json.decode(reply, type=SampleOut),
        lambda engine: TopicService.of_engine(engine).sample(address, body),
        wait_ms=MAX_WAIT_MS,
    )


def add_job(namespace: str, key: str, job_id: str, body: bytes, due_at: int | None) -> Call[Moved]:
    """Repeatable, because the id comes along."""
    address = _address(namespace, key)
    message = AddIn(body=_raw(body), id=job_id, due_at=UNSET if due_at is None else convert.instant_in(due_at))

    def parse(reply: bytes) -> Moved:
        moved = convert.result(msgspec.json.decode(reply, type=messages.ResultOut))
        assert isinstance(moved, Moved)
        return moved

    return Call(
        lambda: Request("POST", _path(namespace, key, "jobs"), msgspec.json.encode(message)),
        parse,
        lambda engine: TopicService.of_engine(engine).jobs.add(address, job_id, body, due_at=due_at),
        repeatable=True,
    )


def _one(
    request: Callable[[], Request],
    work: Callable[[TopicService], Awaitable[TopicOut]],
    *,
    repeatable: bool = False,
) -> Call[TopicOut]:
    return Call(
        request,
        lambda reply: msgspec.json.decode(reply, type=TopicOut),
        lambda engine: work(TopicService.of_engine(engine)),
        repeatable,
    )


def _address(namespace: str, key: str) -> TopicAddress:
    return TopicAddress(DEFAULT_POOL, check_queue(namespace, key))


def _path(namespace: str, *rest: str) -> str:
    parts = "/".join(quote(part, safe="") for part in rest)
    return f"/v1/namespaces/{quote(namespace, safe='')}/topics" + (f"/{parts}" if parts else "")


def _raw(body: bytes) -> Raw:
    value, _ = convert.write_body(body)
    if value is UNSET:
        raise InvalidRequest("the body of a topic's job must be text, an object or an array")
    return value


def body_bytes(body: Any) -> bytes:
    """None is no body, bytes are taken as they are, everything else becomes JSON."""
    if body is None:
        return b""
    return body if isinstance(body, bytes) else encode_json(body, "the body")
