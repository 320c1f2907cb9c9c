"""Redisson's RDelayedQueue and RBlockingQueue on the keys that Java programs use, with StringCodec or a JSON codec.

Each open queue runs a mover, as in Java: it transfers due elements, sleeps until the next one is due, and is woken by
the channel. Movers of Java and ours run side by side. Unlike Java's, ours also check every few seconds, compare with
the clock of Redis, and set an element that cannot be read aside (in `duetime_quarantine:{Q}`) where it would stop
Redisson for good. A value that was taken is gone, as in Java: there is no acknowledgement on these keys.
"""

import hashlib
import json
import logging
import secrets
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any, Literal, Self

from duetime.bridges.foreign import HELD_BYTES, ForeignQueues, HeldBatch, Sizes, own_id
from duetime.bridges.redis_scripts import ForeignRedis
from duetime.model.backoff import Outage
from duetime.model.clock import Duration, duration_ms
from duetime.model.errors import InvalidRequest, InvalidSettings, StoreUnavailable
from duetime.model.job import Delivery, NewJob

log = logging.getLogger("duetime.bridges")

SYSTEM = "redisson"
HEAD = struct.Struct("<B8sQ")
OLD_HEAD = struct.Struct("<dQ")
ID_LENGTH = 8
TRANSFERRED = 100
CHECK_S = 5.0
"""A mover checks at least this often: a lost channel message delays an element no longer."""
PREFIX = "redisson_delay_queue_timeout:"

CodecName = Literal["string", "json"]
NameMapper = Callable[[str], str]


def _encode_string(value: Any) -> bytes:
    if not isinstance(value, str | bytes):
        raise InvalidRequest(f"StringCodec values must be text, got {type(value).__name__}; use codec='json'")
    return value.encode() if isinstance(value, str) else value


def _encode_json(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"value must be JSON: {error}") from None


def _decode_json(value: bytes) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        raise InvalidRequest(f"value is no JSON, so the Java side uses another codec: {value[:40]!r}") from None


CODECS: dict[str, tuple[Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    "string": (_encode_string, partial(str, encoding="utf-8", errors="surrogateescape")),
    "json": (_encode_json, _decode_json),
}


def pack(value: bytes) -> bytes:
    """An element in the format of Redisson 3.21.1 and later, with a random id of its own."""
    return HEAD.pack(ID_LENGTH, secrets.token_bytes(ID_LENGTH), len(value)) + value


def unpack(element: bytes) -> bytes | None:
    """The value of an element in the present or the old format; None if it is neither."""
    if len(element) >= HEAD.size:
        id_length, _, length = HEAD.unpack_from(element)
        if id_length == ID_LENGTH and len(element) == HEAD.size + length:
            return element[HEAD.size :]
    if len(element) >= OLD_HEAD.size and len(element) == OLD_HEAD.size + OLD_HEAD.unpack_from(element)[1]:
        return element[OLD_HEAD.size :]
    return None


class QueueKeys:
    """The keys of one destination queue. Braces are added unless the name has some."""

    def __init__(self, queue: str) -> None:
        tag = queue if "{" in queue else f"{{{queue}}}"
        self.values = queue
        self.elements = f"redisson_delay_queue:{tag}"
        self.timeouts = f"{PREFIX}{tag}"
        self.channel = f"redisson_delay_queue_channel:{tag}"
        self.quarantine = f"duetime_quarantine:{tag}"
        self.held = f"duetime_held:{tag}"
        self.accepted = f"duetime_accepted:{tag}"


class Redisson(ForeignQueues):
    """A client of the queues that a Redisson application shares. `name_mapper` is the Java client's, if it has one."""

    system = SYSTEM

    def __init__(self, url: str, *, codec: CodecName = "string", name_mapper: NameMapper = lambda name: name) -> None:
        if codec not in CODECS:
            raise InvalidSettings(f"codec must be string or json, got {codec!r}")
        self.codec = CODECS[codec]
        self.redis = ForeignRedis(url)
        self._map = name_mapper
        self._movers: dict[str, Mover] = {}
        self._lock = threading.Lock()

    def delayed_queue(self, name: str) -> "RedissonDelayedQueue":
        """The delayed queue whose destination is `name`. Its mover runs until `close`."""
        return RedissonDelayedQueue(self, self._opened(name))

    def blocking_queue(self, name: str) -> "RedissonBlockingQueue":
        """The destination itself. Its consumers move due elements, too, so that none waits for a Java program."""
        return RedissonBlockingQueue(self, self._opened(name))

    def _opened(self, name: str) -> QueueKeys:
        keys = self.keys(name)
        with self._lock:
            if keys.values not in self._movers:
                self._movers[keys.values] = Mover(self.redis, keys)
        return keys

    def keys(self, name: str) -> QueueKeys:
        return QueueKeys(self._map(name))

    def close(self) -> None:
        """Stop the movers."""
        for mover in self._movers.values():
            mover.stop()
        self._movers.clear()
        self.redis.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- relay

    def names(self) -> Sequence[str]:
        """Destinations with delayed elements. A plain list has no mark that tells it from others."""
        found = (key.removeprefix(PREFIX) for key in self.redis.scan(f"{PREFIX}*"))
        return sorted(name[1:-1] if name.startswith("{") and name.endswith("}") else name for name in found)

    def sizes(self, queue: str) -> Sizes:
        keys, call = self.keys(queue), self.redis.call
        first = self.redis.head_score(keys.timeouts)
        return Sizes(
            ready=call("LLEN", keys.values),
            delayed=call("ZCARD", keys.timeouts),
            quarantined=call("LLEN", keys.quarantine),
            held=self.redis.count_held(keys.held, 3),
            oldest_due_at=None if first is None else int(first),
        )

    def hold(self, queue: str, limit: int, size: int = HELD_BYTES) -> HeldBatch | None:
        keys = self.keys(queue)
        places = [keys.timeouts, keys.elements, keys.values]
        name, _ = self.redis.hold("redisson_hold", keys.held, places, [limit, size])
        if not name:
            return None
        triples = [(int(due_at), kind, stored) for due_at, kind, stored in self.redis.batch(keys.held, name, 3)]
        return HeldBatch(name, [_as_job(queue, name, n, *one) for n, one in enumerate(triples)], triples)

    def forget(self, queue: str, batch: HeldBatch, back: Sequence[int] = (), *, if_unshared: bool = False) -> None:
        keys, given = self.keys(queue), list[tuple[Any, ...]]()
        for due_at, kind, stored in (batch.stored[n] for n in back):
            if kind == b"value":
                given.append(("RPUSH", keys.values, "", stored))
            else:
                given += [
                    ("ZADD", keys.timeouts, due_at, stored),
                    ("RPUSH", keys.elements, "", stored),
                    ("PUBLISH", keys.channel, due_at, stored),
                ]
        self.redis.forget(keys.held, batch.name, given, if_unshared=if_unshared)

    def accept(self, queue: str, deliveries: Sequence[Delivery]) -> None:
        """Bodies go to the destination as they are."""
        keys = self.keys(queue)
        named = ((f"{one.lease.id}.{one.lease.born}", one.body) for one in deliveries)
        self.redis.run("accept", [keys.values, keys.accepted], [part for one in named for part in one])


def _as_job(queue: str, batch: str, number: int, due_at: int, kind: bytes, stored: bytes) -> NewJob:
    """An element has a random id of its own; a bare value gets one from its place in the batch."""
    attributes = {"redisson.queue": queue}
    value = stored if kind == b"value" else unpack(stored)
    theirs = f"{batch}.{number}" if kind == b"value" else hashlib.blake2b(stored, digest_size=16).hexdigest()
    if value is None:
        value, attributes["redisson.invalid"] = stored, "true"
    return NewJob(own_id(theirs.encode(), f"{SYSTEM}-"), value, due_at=due_at, attributes=attributes)


class RedissonDelayedQueue:
    """Elements that wait until they are due. Order of `peek`, `read_all` and `poll` is that of insertion."""

    def __init__(self, redisson: Redisson, keys: QueueKeys) -> None:
        self._redis, self._keys = redisson.redis, keys
        self._encode, self._decode = redisson.codec

    def offer(self, value: Any, delay: Duration) -> None:
        """Move `value` to the destination after the delay. Raises InvalidRequest for a negative one."""
        delay_ms = duration_ms(delay)
        if delay_ms < 0:
            raise InvalidRequest(f"delay must not be negative, got {delay!r}")
        element = pack(self._encode(value))
        keys = [self._keys.timeouts, self._keys.elements, self._keys.channel]
        self._redis.run("redisson_offer", keys, [delay_ms, element])

    def size(self) -> int:
        return self._redis.call("LLEN", self._keys.elements)

    def read_all(self) -> list[Any]:
        return [self._value(element) for element in self._redis.values(self._keys.elements)]

    def peek(self) -> Any | None:
        found = self._redis.call("LINDEX", self._keys.elements, 0)
        return None if found is None else self._value(found)

    def poll(self) -> Any | None:
        """Take the oldest element, due or not."""
        while (found := self._redis.call("LINDEX", self._keys.elements, 0)) is not None:
            value = self._value(found)
            if self._remove(found):
                return value
        return None

    def contains(self, value: Any) -> bool:
        return self._find(value) is not None

    def remove(self, value: Any) -> bool:
        """Remove the first element with this value. Reads the list in portions, so Redis is never blocked for long."""
        element = self._find(value)
        return element is not None and self._remove(element)

    def clear(self) -> None:
        self._redis.call("UNLINK", self._keys.timeouts, self._keys.elements)

    def _find(self, value: Any) -> bytes | None:
        wanted = self._encode(value)
        return next((element for element in self._redis.values(self._keys.elements) if unpack(element) == wanted), None)

    def _remove(self, element: bytes) -> bool:
        keys = [self._keys.timeouts, self._keys.elements]
        return self._redis.run("redisson_remove", keys, [element]) == 1

    def _value(self, element: bytes) -> Any:
        value = unpack(element)
        if value is None:
            raise InvalidRequest(f"element is in no format of Redisson: {element[:40]!r}")
        return self._decode(value)


class RedissonBlockingQueue:
    """The destination: a plain list."""

    def __init__(self, redisson: Redisson, keys: QueueKeys) -> None:
        self._redis, self._keys = redisson.redis, keys
        self._encode, self._decode = redisson.codec

    def offer(self, value: Any) -> None:
        self._redis.call("RPUSH", self._keys.values, self._encode(value))

    def poll(self, timeout: Duration = 0) -> Any | None:
        """Take the first value, or None if there is none in time. One that the codec cannot read is set aside, and
        InvalidRequest is raised.
        """
        deadline = time.monotonic() + duration_ms(timeout) / 1000
        while True:
            found = self._redis.call("LPOP", self._keys.values)
            left = deadline - time.monotonic()
            if found is None and left > 0:
                found = self._redis.wait_for([self._keys.values], min(left, CHECK_S))
            if found is not None:
                try:
                    return self._decode(found)
                except InvalidRequest:
                    self._redis.call("RPUSH", self._keys.quarantine, found)
                    raise
            if left <= 0:
                return None

    def take(self) -> Any:
        """Take the first value, waiting for one. It goes on after Redis was unavailable."""
        outage = Outage()
        while True:
            try:
                if (found := self.poll(CHECK_S)) is not None:
                    return found
                outage.worked()
            except StoreUnavailable as error:
                if outage.failed():
                    log.warning("bridge_unavailable", extra={"queue": self._keys.values, "error": error.message})
                time.sleep(outage.pause_s)

    def size(self) -> int:
        return self._redis.call("LLEN", self._keys.values)

    def read_all(self) -> list[Any]:
        return [self._decode(value) for value in self._redis.values(self._keys.values)]

    def remove(self, value: Any) -> bool:
        return self._redis.call("LREM", self._keys.values, 1, self._encode(value)) == 1


class Mover:
    """A thread that transfers due elements of one queue. Its timer is only ever moved to an earlier time."""

    def __init__(self, redis: ForeignRedis, keys: QueueKeys) -> None:
        self._redis, self._keys = redis, keys
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"redisson-mover-{keys.values}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        outage = Outage()
        while not self._stop.is_set():
            try:
                with closing(self._redis.subscribe(self._keys.channel)) as pubsub:
                    self._move_until_stopped(pubsub, outage)
            except StoreUnavailable as error:
                if outage.failed():
                    log.warning("bridge_unavailable", extra={"queue": self._keys.values, "error": error.message})
                self._stop.wait(outage.pause_s)

    def _move_until_stopped(self, pubsub: Any, outage: Outage) -> None:
        while not self._stop.is_set():
            wait_ms = self._transfer()
            outage.worked()
            due = time.monotonic() + (CHECK_S if wait_ms < 0 else min(CHECK_S, wait_ms / 1000))
            while (left := due - time.monotonic()) > 0 and not self._stop.is_set():
                # In slices, so that `stop` does not have to wait for the timer.
                message = self._redis.message(pubsub, min(left, 0.2))
                if message is not None and message.get("type") == "message":
                    break

    def _transfer(self) -> int:
        """Returns the milliseconds until the next element is due, -1 if none waits."""
        keys = [self._keys.timeouts, self._keys.elements, self._keys.values, self._keys.quarantine]
        while True:
            moved, quarantined, wait_ms = self._redis.run("redisson_transfer", keys, [TRANSFERRED])
            if quarantined:
                log.error("redisson_element_quarantined", extra={"queue": self._keys.values, "elements": quarantined})
            if wait_ms != 0 or moved + quarantined == 0:
                return wait_ms
