"""Publish, bulk publish, republish."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from duetime.engine.requests import PushRequest
from duetime.http.exchange import Exchange
from duetime.model.errors import InvalidId, JobExists
from duetime.model.job import IfExists, NewJob
from duetime.model.names import check_id
from duetime.protocols.asgi import header
from duetime.protocols.lmstfy.call import LmstfyCall, LmstfyOperation, LmstfyTools
from duetime.protocols.lmstfy.wire import LmstfyAnswer, Publishing, make_id, read_all, read_publishing, refused
from duetime.stores.base import Push, Pushed

MAX_BULK = 64
BETWEEN_JOBS = 65_536
"""Bytes of a bulk that are not jobs: brackets, commas, blanks."""
MAX_ATTRIBUTES = 16
MAX_KEY = 32
MAX_VALUE = 128

_PREFIX = b"job-attr-"
_Elements = msgspec.json.Decoder(list[msgspec.Raw] | None)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_GAP = re.compile(rb"[ \t\r\n]*,?[ \t\r\n]*")


class Versioned(NamedTuple):
    """The features that `Enable-Job-Version: YES` switches on."""

    version_1: bool
    attributes: Mapping[str, str]


PLAIN = Versioned(False, {})


async def publish(tools: LmstfyTools, call: LmstfyCall) -> LmstfyAnswer:
    asked = read_publishing(call.query, tools.defaults)
    body = await read_all(call.scope, call.receive, tools.max_body, "body too large")
    [job_id] = await _push(tools, call, asked, [body])
    return published_answer(job_id)


def published_answer(job_id: str) -> LmstfyAnswer:
    return LmstfyAnswer(201, b'{"job_id":"%b","msg":"published"}' % job_id.encode())


class Publish(LmstfyOperation[Publishing]):
    """publish on the fast path."""

    def submit(self, exchange: Exchange) -> bool:
        if exchange.received > self.tools.max_body:
            return False
        asked = self.asked
        job_id = make_id(self.tools.ids, asked.delay, version_1=False)
        body = exchange.body()
        job = NewJob(job_id, body, delay_ms=asked.delay * 1000, ttl_ms=asked.ttl * 1000, tries=asked.tries)
        self.begin(exchange, PushRequest(self.queue, Push((job,), IfExists.ERROR)))
        return True

    def respond(self, exchange: Exchange, result: Pushed) -> None:
        self.tools.metrics.published(self.pool, self.queue, 1, delayed=self.asked.delay > 0)
        self.finish(exchange, published_answer(result.jobs[0].id))

    def fail(self, exchange: Exchange, error: Exception) -> None:
        """Two processes may draw the same id in one millisecond; the application tries with another id."""
        if isinstance(error, JobExists):
            exchange.start()
        else:
            super().fail(exchange, error)


async def bulk_publish(tools: LmstfyTools, call: LmstfyCall) -> LmstfyAnswer:
    """Publishes all of the jobs or none."""
    asked = read_publishing(call.query, tools.defaults)
    bodies = split_array(
        await read_all(call.scope, call.receive, MAX_BULK * tools.max_body + BETWEEN_JOBS, "job too large")
    )
    if not bodies:
        raise refused(400, "no jobs")
    if len(bodies) > MAX_BULK:
        raise refused(400, "too many jobs")
    if any(len(body) > tools.max_body for body in bodies):
        raise refused(413, "job too large")
    job_ids = await _push(tools, call, asked, bodies)
    return LmstfyAnswer(201, b'{"job_ids":%b,"msg":"published"}' % msgspec.json.encode(job_ids))


async def republish(tools: LmstfyTools, call: LmstfyCall) -> LmstfyAnswer:
    """Publish, and only then remove the old job: whatever happens in between, one of the two is there."""
    answer = await publish(tools, call)
    try:
        check_id(call.job_id)
    except InvalidId:
        return answer  # no job can have this id, and an unknown id is no error
    await call.engine.cancel(call.queue, [call.job_id])
    return answer


async def _push(tools: LmstfyTools, call: LmstfyCall, asked: Publishing, bodies: Sequence[bytes]) -> list[str]:
    """Pushes under new ids. Two processes may draw the same id in one millisecond; then it tries once more."""
    versioned = read_version(call)
    try:
        return await _push_once(tools, call, asked, bodies, versioned)
    except JobExists:
        return await _push_once(tools, call, asked, bodies, versioned)


async def _push_once(
    tools: LmstfyTools, call: LmstfyCall, asked: Publishing, bodies: Sequence[bytes], versioned: Versioned
) -> list[str]:
    version_1, attributes = versioned
    ids = [make_id(tools.ids, asked.delay, version_1=version_1) for _ in bodies]
    jobs = [
        NewJob(
            job_id,
            body,
            delay_ms=asked.delay * 1000,
            ttl_ms=asked.ttl * 1000,
            tries=asked.tries,
            attributes=attributes,
        )
        for job_id, body in zip(ids, bodies, strict=True)
    ]
    await call.engine.push(call.queue, jobs, if_exists=IfExists.ERROR)
    tools.metrics.published(call.pool, call.queue, len(jobs), delayed=asked.delay > 0)
    return ids


def read_version(call: LmstfyCall) -> Versioned:
    """The attributes from headers: trimmed, in lower case, the first value of each, without empty ones."""
    if header(call.scope, b"enable-job-version").lower() != b"yes":
        return PLAIN
    first: dict[bytes, bytes] = {}
    for name, value in call.scope["headers"]:
        if name.startswith(_PREFIX):
            first.setdefault(name, value)
    attributes: dict[str, str] = {}
    for name, value in first.items():
        key = name[len(_PREFIX) :][:MAX_KEY].decode("latin-1").lower()
        text = value[:MAX_VALUE].decode(errors="replace").replace("\0", "")
        if key and text:
            attributes.setdefault(key, text)
    if len(attributes) > MAX_ATTRIBUTES:
        raise refused(400, f"too many attributes, cannot exceed {MAX_ATTRIBUTES}")
    return Versioned(True, attributes)


def split_array(text: bytes) -> list[bytes]:
    """The elements of a JSON array, byte for byte; `null` is an empty one."""
    try:
        return [bytes(element) for element in _Elements.decode(text) or ()]
    except (msgspec.DecodeError, RecursionError):
        pass
    # The decoder refuses half a surrogate pair, which is valid JSON and does occur. So decode a copy without them, and
    # cut the elements, which have the same lengths, out of the original.
    try:
        lengths = [len(bytes(element)) for element in _Elements.decode(_SURROGATE.sub(rb"\\u0041", text)) or ()]
    except (msgspec.DecodeError, RecursionError):
        raise refused(400, "request body should be an array of objects") from None
    elements: list[bytes] = []
    at = _skip_gap(text, text.index(b"[") + 1)
    for length in lengths:
        elements.append(text[at : at + length])
        at = _skip_gap(text, at + length)
    return elements


def _skip_gap(text: bytes, at: int) -> int:
    gap = _GAP.match(text, at)
    return gap.end() if gap else at
