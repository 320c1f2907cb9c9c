"""The topics of a deployment, kept in the registry.

A topic is one record, under pool/namespace/key. Whoever asks often (doors, courier) reads a mirror of the registry,
which knows of a change by any process within a second; whoever changes or shows a topic reads the registry itself.
A removed topic leaves a stone in its place until its queue is empty, so that its jobs reach the dead letters.
"""

import secrets
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from duetime.alerts.problems import KEY, SETTINGS, read_settings
from duetime.clock import Clock, SystemClock
from duetime.engine.registry_copy import RegistryCopy
from duetime.errors import InvalidRequest, TopicExists, TopicNotFound, VersionConflict
from duetime.names import Queue, is_mail
from duetime.settings import mask
from duetime.stores.registry import Record, Registry
from duetime.topic import NEW_SECRET, Status, Topic, check_topic

KIND = "topic"
REMOVED_KIND = "topic-removed"
ID_COUNTER = "topic-ids"
OVERLAP_MS = 86_400_000
"""How long the old secret signs beside the new one."""
SECRET_BYTES = 32
SECRET_PREFIX = "whsec_"

_decode = msgspec.json.Decoder(Topic).decode
_encode = msgspec.json.Encoder().encode


class TopicPlace(NamedTuple):
    """Where a topic is; its name in the registry, no part of which can hold a slash."""

    pool: str
    queue: Queue

    @property
    def key(self) -> str:
        return f"{self.pool}/{self.queue}"

    @classmethod
    def of_key(cls, key: str) -> "TopicPlace":
        pool, _, queue = key.partition("/")
        return cls(pool, Queue.parse(queue))


class TopicRegistry:
    """`registry` is asked anew for every call, because its store may be closed and opened again."""

    def __init__(
        self, registry: Callable[[], Registry], mirror: RegistryCopy | None = None, *, clock: Clock | None = None
    ) -> None:
        self._registry = registry
        self._mirror = mirror
        self._clock = clock or SystemClock()
        self._decoded: dict[str, tuple[int, Topic]] = {}

    # --- for doors and the courier

    async def find(self, place: TopicPlace) -> Topic:
        """From the mirror if there is one. Raises TopicNotFound."""
        if self._mirror is None:
            return await self.get(place)
        record = self._mirror.get(KIND, place.key)
        if record is None:
            # It may have been made by another process a moment ago.
            await self._mirror.refresh()
            record = self._mirror.get(KIND, place.key)
            if record is None:
                raise _not_found(place)
        return self._read(record)

    def known(self, kind: str = KIND) -> dict[TopicPlace, Topic]:
        """All that the mirror knows, of all pools."""
        if self._mirror is None:
            return {}
        records = self._mirror.list_records(kind)
        return {TopicPlace.of_key(record.key): self._read(record) for record in records}

    def _read(self, record: Record) -> Topic:
        """Decoded once per version of a record."""
        known = self._decoded.get(record.key)
        if known is None or known[0] != record.version:
            known = self._decoded[record.key] = record.version, _decode(record.value)
        return known[1]

    # --- for administration

    async def get(self, place: TopicPlace) -> Topic:
        """As it is now. Raises TopicNotFound."""
        return _decode((await self._record(place)).value)

    async def exists(self, place: TopicPlace) -> bool:
        """As it is now."""
        return await self._registry().get(KIND, place.key) is not None

    async def list_topics(self, pool: str, namespace: str, kind: str = KIND) -> list[Topic]:
        """Sorted by key. REMOVED_KIND lists those that were removed and have jobs left."""
        prefix = f"{pool}/{namespace}/"
        records = await self._registry().list_records(kind)
        return [_decode(record.value) for record in records if record.key.startswith(prefix)]

    async def add(self, place: TopicPlace, topic: Topic) -> Topic:
        """Make a topic; `secret` may be "new". Raises TopicExists, and what `check_topic` raises."""
        topic = structs.replace(check_topic(topic), key=place.queue.name, secret=_secret(topic.secret))
        registry = self._registry()
        if await registry.get(KIND, place.key):
            raise _exists(place)
        await self._check_channels(topic.alert)
        number = (await registry.increment(ID_COUNTER)).value
        topic = structs.replace(topic, id=number)
        try:
            await registry.put(KIND, place.key, _encode(topic), if_version=0)
        except VersionConflict:
            raise _exists(place) from None
        await registry.delete(REMOVED_KIND, place.key)
        await self._refresh()
        return topic

    async def edit(self, place: TopicPlace, change: Mapping[str, Any]) -> Topic:
        """`change` holds new values by the names of a topic's fields; the secret "" ends signing, "new" draws one.

        Raises TopicNotFound, and what `check_topic` raises.
        """
        fields = {name: value for name, value in change.items() if name != "secret"}

        def apply(topic: Topic) -> Topic:
            edited = check_topic(structs.replace(topic, **fields))
            return self._with_secret(edited, _secret(change["secret"])) if "secret" in change else edited

        if "alert" in change:
            await self._check_channels(change["alert"])
        return await self._write(place, apply)

    async def _check_channels(self, addresses: Sequence[str]) -> None:
        """A wrong name would be noticed when something else is wrong."""
        if names := [address for address in addresses if not is_mail(address)]:
            known = read_settings(await self._registry().get(SETTINGS, KEY)).channels
            for name in names:
                if name not in known:
                    raise InvalidRequest(
                        f"there is no channel {mask(name)!r}; operators add one: duetime alert add URL --channel NAME",
                        path="$.alert",
                    )

    def _with_secret(self, topic: Topic, secret: str) -> Topic:
        if not secret:
            return structs.replace(topic, secret="", old_secret="", old_secret_until=0)
        until = self._clock.now_ms() + OVERLAP_MS if topic.secret else 0
        return structs.replace(topic, secret=secret, old_secret=topic.secret, old_secret_until=until)

    async def set_status(self, place: TopicPlace, status: Status, *, halted: str = "") -> Topic:
        """Online also ends a halt. Raises TopicNotFound."""
        return await self._write(place, lambda topic: structs.replace(topic, status=status, halted=halted))

    async def _write(self, place: TopicPlace, apply: Callable[[Topic], Topic]) -> Topic:
        while True:
            record = await self._record(place)
            topic = apply(_decode(record.value))
            try:
                await self._registry().put(KIND, place.key, _encode(topic), if_version=record.version)
            except VersionConflict:
                continue
            await self._refresh()
            return topic

    async def remove(self, place: TopicPlace) -> Topic:
        """Its jobs go to the dead letters as they fall due. Raises TopicNotFound."""
        topic = await self.get(place)
        await self._registry().put(REMOVED_KIND, place.key, _encode(structs.replace(topic, secret="", old_secret="")))
        await self._registry().delete(KIND, place.key)
        await self._refresh()
        return topic

    async def forget(self, place: TopicPlace) -> None:
        """The last job of a removed topic is gone."""
        await self._registry().delete(REMOVED_KIND, place.key)

    async def _record(self, place: TopicPlace) -> Record:
        record = await self._registry().get(KIND, place.key)
        if record is None:
            raise _not_found(place)
        return record

    async def _refresh(self) -> None:
        if self._mirror is not None:
            await self._mirror.refresh()


def secrets_of(topic: Topic, now_ms: int) -> Sequence[str]:
    """Those that sign now, the present one first."""
    if topic.old_secret and now_ms < topic.old_secret_until:
        return (topic.secret, topic.old_secret)
    return (topic.secret,) if topic.secret else ()


def _secret(given: str) -> str:
    if given == NEW_SECRET:
        return SECRET_PREFIX + b64encode(secrets.token_bytes(SECRET_BYTES)).decode()
    if given:
        try:
            raw = b64decode(given.removeprefix(SECRET_PREFIX), validate=True)
        except (NotBase64, ValueError):
            raise InvalidRequest("a secret is whsec_ and base64, or 'new'", path="$.secret") from None
        if not 24 <= len(raw) <= 64:
            raise InvalidRequest(f"a secret has 24 to 64 bytes, not {len(raw)}", path="$.secret")
        return SECRET_PREFIX + b64encode(raw).decode()
    return ""


def _not_found(place: TopicPlace) -> TopicNotFound:
    return TopicNotFound(f"there is no topic {place.queue.name!r} in {place.queue.namespace}", topic=place.queue.name)


def _exists(place: TopicPlace) -> TopicExists:
    return TopicExists(f"there is a topic {place.queue.name!r} in {place.queue.namespace}", topic=place.queue.name)
