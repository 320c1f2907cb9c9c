"""A blocking connection to somebody else's Redis, and the scripts that the bridges run there."""

from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any, cast
from urllib.parse import urlsplit, urlunsplit

from duetime.bridges.foreign import CLOSED_MS
from duetime.model.errors import InvalidSettings, StoreUnavailable
from duetime.model.ids import IdMaker
from duetime.model.masking import mask

try:
    import redis
    from redis.cluster import RedisCluster
    from redis.exceptions import ConnectionError as Unreachable
    from redis.exceptions import RedisError, TimeoutError
except ModuleNotFoundError as missing:
    raise InvalidSettings.lacks("a bridge to Redis", "redis", missing) from None

ANSWER_S = 30
PAGE = 500
"""Entries that one command reads."""


class ForeignRedis:
    """redis://, rediss:// or, for a cluster, redis+cluster://. Errors of Redis are raised as StoreUnavailable."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"redis", "rediss", "redis+cluster"}:
            raise InvalidSettings(
                f"Redis URL must begin with redis://, rediss:// or redis+cluster://, got {parts.scheme!r}"
            )
        self.is_cluster = parts.scheme == "redis+cluster"
        self.url = urlunsplit(parts._replace(scheme="redis")) if self.is_cluster else url
        made: Any = RedisCluster if self.is_cluster else redis.Redis
        options: Any = {"protocol": 2, "socket_timeout": ANSWER_S, "health_check_interval": 30}
        try:
            self._redis: Any = self._guard(lambda: made.from_url(self.url, **options))
        except ValueError as error:
            raise InvalidSettings(f"Redis URL {mask(url)} is not valid: {error}") from None
        self._scripts: dict[str, Any] = {}
        self._ids = IdMaker()

    def run(self, script: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """Run scripts/NAME.lua, or several files as one script."""
        if script not in self._scripts:
            files = resources.files(__package__ or "") / "scripts"
            text = "".join((files / f"{name}.lua").read_text() for name in script.split())
            self._scripts[script] = self._redis.register_script(text)
        return self._guard(lambda: self._scripts[script](keys=keys, args=arguments))

    def hold(self, script: str, held: str, keys: Sequence[str], arguments: Sequence[Any]) -> tuple[str, int]:
        """Run a script that moves jobs into a new batch of `held`, the zset of a queue's batches, unless one was left
        behind. Returns the name of the batch, "" without one, and what else the script says.
        """
        new = self._ids.make()
        name, said = self.run(f"hold {script}", [*keys, held, f"{held}:{new}"], [new, CLOSED_MS, *arguments])
        return name.decode(), said

    def batch(self, held: str, name: str, fields: int) -> list[list[Any]]:
        """The jobs of a held batch, each as `fields` values."""
        stored: Any = self.call("LRANGE", f"{held}:{name}", 0, -1)
        return [stored[n : n + fields] for n in range(0, len(stored), fields)]

    def forget(self, held: str, name: str, back: Sequence[Sequence[Any]], *, if_unshared: bool) -> None:
        """Delete a held batch and, in the same step, put jobs back: ("ZADD", key, score, job) or ("RPUSH", key, "",
        job) each. After these two, ("PUBLISH", channel, message, job) announces a job that is now the first.
        """
        keys = [held, f"{held}:{name}", *(key for _, key, *_ in back)]
        steps = (part for verb, _, *rest in back for part in (verb, *rest))
        self.run("forget", keys, [name, "1" if if_unshared else "", *steps])

    def count_held(self, held: str, fields: int) -> int:
        """The jobs of all held batches of a queue."""
        names: Any = self.call("ZRANGE", held, 0, -1)
        return sum(self.call("LLEN", f"{held}:{name.decode()}") // fields for name in names)

    def call(self, *command: Any) -> Any:
        """One command, as redis-py answers it."""
        return self._guard(lambda: self._redis.execute_command(*command))

    def head_score(self, zset: str) -> float | None:
        """The lowest score of a zset."""
        head: Any = self.call("ZRANGE", zset, 0, 0, "WITHSCORES")
        return float(head[1]) if head else None

    def members(self, zset: str) -> Iterator[tuple[bytes, float]]:
        """Members and scores in no order, read in steps."""
        cursor: Any = 0
        while True:
            cursor, found = self.call("ZSCAN", zset, cursor, "COUNT", PAGE)
            yield from found
            if cursor == 0:
                return

    def values(self, key: str) -> Iterator[bytes]:
        """The elements of a list, read in steps. Elements that are removed meanwhile make it pass others."""
        first = 0
        while found := self.call("LRANGE", key, first, first + PAGE - 1):
            yield from found
            first += len(found)

    def wait_for(self, keys: Sequence[str], seconds: float) -> bytes | None:
        """BLPOP: the left element of the first list that has one, or None after that time. Keys of different slots
        cannot be waited for together: on a cluster it waits for the first list.
        """
        waited = keys[:1] if self.is_cluster else keys
        found = self._guard(lambda: self._redis.blpop(waited, timeout=max(0.01, seconds)))
        return found[1] if found else None

    def subscribe(self, channel: str) -> Any:
        """redis-py's PubSub on this channel."""
        pubsub: Any = self._redis.pubsub(ignore_subscribe_messages=False)
        self._guard(lambda: pubsub.subscribe(channel))
        return pubsub

    def message(self, pubsub: Any, seconds: float) -> Any:
        """The next message of a subscription, or None after that time."""
        return self._guard(lambda: pubsub.get_message(timeout=seconds))

    def scan(self, pattern: str) -> list[str]:
        """Keys that match, sorted. Looks at the whole keyspace, in small steps."""
        found: Any = self._guard(lambda: list(self._redis.scan_iter(match=pattern, count=1000)))
        return sorted({cast(bytes, key).decode(errors="surrogateescape") for key in found})

    def close(self) -> None:
        self._redis.close()

    @staticmethod
    def _guard(work: Any) -> Any:
        try:
            return work()
        except RedisError as error:
            unknown = isinstance(error, Unreachable | TimeoutError)
            raise StoreUnavailable(f"Redis of the bridge: {error}", unknown=unknown) from error
