"""php-delayqueue's TCP protocol, for its existing PHP and Java clients: add, get and del.

A frame is four ASCII digits that say how many bytes of JSON follow. Frames arrive in pieces and in rows; `Frames` puts
them together. A length that is no number, or zero, ends the conversation: there is no way to find the next frame.

    0042{"cmd":"get","topic":"order","id":"1001"}

A reply is `{"code": 1, "msg": "succ", "data": ...}` or code 0 and "fail"; the reason is in the log, because the
protocol cannot carry it. An unknown command has no reply at all.
"""

import asyncio
import hmac
import logging
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from duetime.callbacks.topic_registry import TopicAddress
from duetime.callbacks.topic_service import TopicJob, TopicJobs
from duetime.model.errors import DuetimeError, InvalidRequest, StoreUnavailable, Unauthorized
from duetime.model.ids import IdMaker
from duetime.model.job import Event, Moved
from duetime.model.logs import REQUEST_ID
from duetime.model.names import check_queue
from duetime.protocols.access_log import AccessLog

HEAD = 4
MAX_FRAME = 9999
MAX_RUN = 100
"""Adds that share one push."""


class BadFrame(Exception):
    """The received bytes are not a frame. The connection must be closed."""


class Frames:
    """Collects the received bytes and returns complete frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yields the complete frames. Raises BadFrame after them if the next length is not valid."""
        self._buffer += data
        while len(self._buffer) >= HEAD:
            length = _length(bytes(self._buffer[:HEAD]))
            if len(self._buffer) < HEAD + length:
                return
            frame = bytes(self._buffer[HEAD : HEAD + length])
            del self._buffer[: HEAD + length]
            yield frame
        if self._buffer and not self._buffer.isdigit():
            raise BadFrame(f"length of a frame must be {HEAD} digits, got {bytes(self._buffer)!r}")


def _length(head: bytes) -> int:
    if not head.isdigit() or head == b"0000":
        raise BadFrame(f"length of a frame must be {HEAD} digits, got {head!r}")
    return int(head)


def frame(value: Any) -> bytes:
    """Raises OverflowError if the text does not fit into one frame."""
    text = msgspec.json.encode(value)
    if len(text) > MAX_FRAME:
        raise OverflowError(f"frame must have at most {MAX_FRAME} bytes, got {len(text)}")
    return b"%04d%b" % (len(text), text)


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


def reply(done: bool, data: Any = ()) -> bytes:
    """Raises OverflowError."""
    return frame({"code": int(done), "msg": "succ" if done else "fail", "data": data})


DONE, FAILED = reply(True), reply(False)


class Commands:
    def __init__(self, topic_jobs: TopicJobs, rules: CommandRules) -> None:
        self._topic_jobs = topic_jobs
        self._rules = rules

    async def answer(self, request: dict[str, Any]) -> bytes | None:
        """The frame of the reply; None if the protocol has none."""
        command = request.get("cmd")
        if command not in ("add", "get", "del"):
            log.info("unknown_command", extra={"command": repr(command)[:40]})
            return None
        try:
            self._check_token(request)
            address = self._address(request)
            match command:
                case "add":
                    job_id, body, fix_time, _ = _topic_job(request)
                    return self._added(await self._topic_jobs.add(address, job_id, body, fix_time=fix_time))
                case "get":
                    return _found(await self._topic_jobs.get(address, _text(request, "id")))
                case _:
                    await self._topic_jobs.delete(address, _text(request, "id"))
                    return DONE
        except DuetimeError as error:
            log.info("refused", extra={"command": command, "code": error.code, "error": error.message})
            return FAILED

    async def answer_adds(self, requests: Sequence[dict[str, Any]]) -> Sequence[bytes | None]:
        """The answers to adds of different ids to one topic, which share one push. If one of them is refused, each is
        pushed alone. While a store is down, only the adds fail that belong to it.
        """
        if len(requests) > 1:
            try:
                for request in requests:
                    self._check_token(request)
                address, jobs = self._address(requests[0]), [_topic_job(request) for request in requests]
                return [self._added(moved) for moved in await self._topic_jobs.add_all(address, jobs)]
            except StoreUnavailable as error:
                log.info("refused", extra={"command": "add", "code": error.code, "error": error.message})
                return [FAILED] * len(requests)
            except DuetimeError:
                log.debug("adds_are_pushed_alone", extra={"adds": len(requests)})
        return [await self.answer(request) for request in requests]

    def _added(self, moved: Moved | StoreUnavailable) -> bytes:
        if isinstance(moved, StoreUnavailable):
            log.info("refused", extra={"command": "add", "code": moved.code, "error": moved.message})
            return FAILED
        return FAILED if moved.event is Event.REPLACED and self._rules.update_fails else DONE

    def _address(self, request: dict[str, Any]) -> TopicAddress:
        return TopicAddress(self._rules.pool, check_queue(self._rules.namespace, _text(request, "topic")))

    def _check_token(self, request: dict[str, Any]) -> None:
        given = request.get("token")
        given = given if isinstance(given, str) else ""
        if self._rules.token and not hmac.compare_digest(given.encode(), self._rules.token.encode()):
            raise Unauthorized


def _text(request: dict[str, Any], key: str) -> str:
    """Text, or a number, which PHP clients also send."""
    value = request.get(key)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InvalidRequest(f"{key} must be text or a number")
    return str(value)


def _topic_job(request: dict[str, Any]) -> TopicJob:
    fix_time = request.get("fix_time") or ""
    if not isinstance(fix_time, str):
        raise InvalidRequest("fix_time must be text")
    return TopicJob(_text(request, "id"), _body(request.get("body")), fix_time)


def add_runs(requests: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Splits requests, in their order, into runs of adds to one topic with different ids, and single requests."""
    run, ids, topic = list[dict[str, Any]](), set[str](), None
    for request in requests:
        job_id = str(request.get("id"))
        is_add = request.get("cmd") == "add"
        if run and (not is_add or request.get("topic") != topic or job_id in ids or len(run) == MAX_RUN):
            yield run
            run, ids = list[dict[str, Any]](), set[str]()
        if not is_add:
            yield [request]
            continue
        topic = request.get("topic")
        run.append(request)
        ids.add(job_id)
    if run:
        yield run


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
        raise InvalidRequest("body must be an object")
    return value  # pyright: ignore[reportUnknownVariableType]  # JSON's keys are text


def _found(body: bytes) -> bytes:
    """Bodies of other protocols may be anything: what is not JSON is shown as text, and some fit into no frame."""
    try:
        kept = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        kept = body.decode(errors="replace")
    try:
        return reply(True, kept)
    except OverflowError as error:
        log.warning("reply_does_not_fit", extra={"error": str(error)})
        return FAILED


CHUNK = 65_536
BACKLOG = 5000


@dataclass(frozen=True)
class TcpOptions:
    connections: int = 2000
    idle_s: float = 300.0
    tls: ssl.SSLContext | None = None
    access_log: AccessLog | None = None


class TcpServer:
    """Serves its sockets between `start` and `stop`."""

    def __init__(self, commands: Commands, sockets: Sequence[socket.socket], options: TcpOptions | None = None) -> None:
        self._commands = commands
        self._sockets = sockets
        self._options = options or TcpOptions()
        self._servers: list[asyncio.Server] = []
        self._talks: dict[asyncio.Task[None], asyncio.Event] = {}
        """The conversations under way; the event is set while one waits for a request."""
        self._draining = False
        self._make_id = IdMaker().make

    async def start(self) -> None:
        self._servers = [
            await asyncio.start_server(self._talk, sock=sock, ssl=self._options.tls, limit=CHUNK, backlog=BACKLOG)
            for sock in self._sockets
        ]

    async def stop(self, grace_s: float) -> None:
        """Requests that have arrived are answered; then, or when the time is up, connections are closed."""
        self._draining = True
        for server in self._servers:
            server.close()
        for talk, is_idle in list(self._talks.items()):
            if is_idle.is_set():
                talk.cancel()
        if self._talks:
            _, late = await asyncio.wait(self._talks, timeout=grace_s)
            for talk in late:
                talk.cancel()
            if late:
                await asyncio.wait(late)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        is_idle = asyncio.Event()
        REQUEST_ID.set(self._make_id())  # the protocol has no ids: the lines of one conversation belong together
        try:
            if len(self._talks) >= self._options.connections or self._draining:
                log.warning("too_many_connections", extra={"limit": self._options.connections})
                return
            self._talks[task] = is_idle
            await self._converse(reader, writer, is_idle)
        except TimeoutError:
            log.info("conversation_ended", extra={"error": "idle"})
            writer.transport.abort()  # a close would wait for a client that does not read
        except (BadFrame, OSError) as error:
            log.info("conversation_ended", extra={"error": str(error) or type(error).__name__})
        except asyncio.CancelledError:
            if not self._draining:
                raise
        finally:
            self._talks.pop(task, None)
            writer.close()

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_idle: asyncio.Event
    ) -> None:
        frames, access_log = Frames(), self._options.access_log
        # Read now: uvloop has no address of a connection once it is closed.
        peer: tuple[str, int] | None = None if writer.is_closing() else writer.get_extra_info("peername")
        while not self._draining:
            is_idle.set()
            async with asyncio.timeout(self._options.idle_s):
                data = await reader.read(CHUNK)
            is_idle.clear()
            if not data:
                return
            requests, bad = _requests(frames, data)
            replies = bytearray()
            for run in add_runs(requests):
                began = time.perf_counter()
                answers = await self._commands.answer_adds(run)
                elapsed_s = time.perf_counter() - began
                for request, answer in zip(run, answers, strict=True):
                    replies += answer or b""
                    if access_log is not None:
                        name, done = str(request.get("cmd"))[:40], answer is not None and answer is not FAILED
                        access_log.command(name, ip=peer[0] if peer else "", done=done, elapsed_s=elapsed_s)
                if len(replies) >= CHUNK:
                    await self._send(writer, replies)
                    replies = bytearray()
            await self._send(writer, replies)
            if bad:
                raise bad

    async def _send(self, writer: asyncio.StreamWriter, replies: bytearray) -> None:
        """Replies to requests that came together are one write."""
        if writer.is_closing():
            raise ConnectionResetError("the client disconnected")
        if replies:
            writer.write(replies)
            if writer.transport.get_write_buffer_size():
                async with asyncio.timeout(self._options.idle_s):  # a client that sends and never reads counts as idle
                    await writer.drain()


def _decode(text: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadFrame(f"not a JSON object: {error}") from None


def _requests(frames: Frames, data: bytes) -> tuple[list[dict[str, Any]], BadFrame | None]:
    """The complete requests, and the error that follows them, if any."""
    requests: list[dict[str, Any]] = []
    try:
        for text in frames.feed(data):
            requests.append(_decode(text))
    except BadFrame as error:
        return requests, error
    return requests, None
