"""The topics of a deployment, kept in the registry.

A topic is one record, under pool/namespace/key. Protocols and the courier read topics from this process's copy of the
registry, which follows changes by any process within a second. Administration reads and writes the registry itself.
A removed topic leaves a record of another kind until its queue is empty, so that its jobs reach the dead letters.
"""

import secrets
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from duetime.alerts.problems import KEY, SETTINGS, read_settings
from duetime.engine.engine import Engine
from duetime.engine.registry_copy import RegistryCopy
from duetime.model.clock import Clock, SystemClock
from duetime.model.errors import InvalidRequest, TopicExists, TopicNotFound, VersionConflict
from duetime.model.masking import mask
from duetime.model.names import Queue, is_mail, is_mail_in
from duetime.model.topic import NEW_SECRET, Status, Topic, check_topic
from duetime.stores.base import RulesChange
from duetime.stores.registry import Record, Registry

KIND = "topic"
REMOVED_KIND = "topic-removed"
ID_COUNTER = "topic-ids"
OVERLAP_MS = 86_400_000
"""How long the old secret signs together with the new one."""
SECRET_BYTES = 32
SECRET_PREFIX = "whsec_"

_decode = msgspec.json.Decoder(Topic).decode
_encode = msgspec.json.Encoder().encode


class TopicAddress(NamedTuple):
    """The pool and the queue of a topic. `key` is the record's key, pool/namespace/name; no part can hold a slash."""

    pool: str
    queue: Queue

    @property
    def key(self) -> str:
        return f"{self.pool}/{self.queue}"

    @classmethod
    def of_key(cls, key: str) -> "TopicAddress":
        pool, _, queue = key.partition("/")
        return cls(pool, Queue.parse(queue))


class TopicRegistry:
    """`registry` is called before every access, because the store behind it may be closed and opened again."""

    def __init__(
        self,
        registry: Callable[[], Registry],
        registry_copy: RegistryCopy | None = None,
        *,
        clock: Clock | None = None,
        mail_domains: Collection[str] | None = None,
    ) -> None:
        """`mail_domains`: the domains that mail addresses of topics may have; None if they are not known here."""
        self._registry = registry
        self._registry_copy = registry_copy
        self._clock = clock or SystemClock()
        self._mail_domains = mail_domains
        self._decoded: dict[str, tuple[int, Topic]] = {}

    # --- for protocols and the courier

    async def find(self, address: TopicAddress) -> Topic:
        """The topic, from the copy of the registry if there is one. Raises TopicNotFound."""
        if self._registry_copy is None:
            return await self.get(address)
        record = self._registry_copy.get(KIND, address.key)
        if record is None:
            # Another process may have added the topic a moment ago.
            await self._registry_copy.refresh()
            record = self._registry_copy.get(KIND, address.key)
            if record is None:
                raise _not_found(address)
        return self._read(record)

    def known(self, kind: str = KIND) -> dict[TopicAddress, Topic]:
        """All topics in the copy of the registry, of all pools."""
        if self._registry_copy is None:
            return {}
        records = self._registry_copy.list_records(kind)
        return {TopicAddress.of_key(record.key): self._read(record) for record in records}

    def _read(self, record: Record) -> Topic:
        """The topic of a record, which is decoded once per version."""
        known = self._decoded.get(record.key)
        if known is None or known[0] != record.version:
            known = self._decoded[record.key] = record.version, _decode(record.value)
        return known[1]

    # --- for administration

    async def get(self, address: TopicAddress) -> Topic:
        """The topic as the registry has it now. Raises TopicNotFound."""
        return _decode((await self._record(address)).value)

    async def exists(self, address: TopicAddress) -> bool:
        """Returns whether the registry has the topic now."""
        return await self._registry().get(KIND, address.key) is not None

    async def list_topics(self, pool: str, namespace: str, kind: str = KIND) -> list[Topic]:
        """The topics of a namespace, sorted by key. REMOVED_KIND lists those that were removed and have jobs left."""
        prefix = f"{pool}/{namespace}/"
        records = await self._registry().list_records(kind)
        return [_decode(record.value) for record in records if record.key.startswith(prefix)]

    async def add(self, address: TopicAddress, topic: Topic) -> Topic:
        """Add a topic; the secret "new" makes one. Raises TopicExists, and what `check_topic` raises."""
        topic = structs.replace(check_topic(topic), key=address.queue.name, secret=_secret(topic.secret))
        registry = self._registry()
        if await registry.get(KIND, address.key):
            raise _exists(address)
        await self._check_alert(topic.alert)
        number = (await registry.increment(ID_COUNTER)).value
        topic = structs.replace(topic, id=number)
        try:
            await registry.put(KIND, address.key, _encode(topic), if_version=0)
        except VersionConflict:
            raise _exists(address) from None
        await registry.delete(REMOVED_KIND, address.key)
        await self._refresh()
        return topic

    async def edit(self, address: TopicAddress, change: Mapping[str, Any]) -> Topic:
        """`change` holds new values by the names of a topic's fields; the secret "" ends signing, "new" makes one.

        Raises TopicNotFound, and what `check_topic` raises.
        """
        fields = {name: value for name, value in change.items() if name != "secret"}

        def apply(topic: Topic) -> Topic:
            edited = check_topic(structs.replace(topic, **fields))
            return self._with_secret(edited, _secret(change["secret"])) if "secret" in change else edited

        if "alert" in change:
            await self._check_alert(change["alert"])
        return await self._write(address, apply)

    async def _check_alert(self, addresses: Sequence[str]) -> None:
        """Refuse addresses to which no alert would be sent, so that no alert is lost because of them."""
        for address in addresses:
            if is_mail(address) and self._mail_domains is not None and not is_mail_in(address, self._mail_domains):
                raise InvalidRequest(
                    f"mail address of a topic must be in a domain of the setting alert_mail_domains: {address!r}; "
                    "operators can set it, or add a channel: duetime alert add ADDRESS --channel NAME",
                    path="$.alert",
                )
        if names := [address for address in addresses if not is_mail(address)]:
            known = read_settings(await self._registry().get(SETTINGS, KEY)).channels
            for name in names:
                if name not in known:
                    raise InvalidRequest(
                        f"unknown channel {mask(name)!r}; operators add one: duetime alert add URL --channel NAME",
                        path="$.alert",
                    )

    def _with_secret(self, topic: Topic, secret: str) -> Topic:
        if not secret:
            return structs.replace(topic, secret="", old_secret="", old_secret_until=0)
        until = self._clock.now_ms() + OVERLAP_MS if topic.secret else 0
        return structs.replace(topic, secret=secret, old_secret=topic.secret, old_secret_until=until)

    async def set_status(self, address: TopicAddress, status: Status, *, halted: str = "") -> Topic:
        """Set the status and the reason of a halt; without a reason, a halt ends. Raises TopicNotFound."""
        return await self._write(address, lambda topic: structs.replace(topic, status=status, halted=halted))

    async def _write(self, address: TopicAddress, apply: Callable[[Topic], Topic]) -> Topic:
        while True:
            record = await self._record(address)
            topic = apply(_decode(record.value))
            try:
                await self._registry().put(KIND, address.key, _encode(topic), if_version=record.version)
            except VersionConflict:
                continue
            await self._refresh()
            return topic

    async def remove(self, address: TopicAddress) -> Topic:
        """Remove the topic; its jobs go to the dead letters as they fall due. Raises TopicNotFound."""
        topic = await self.get(address)
        await self._registry().put(REMOVED_KIND, address.key, _encode(structs.replace(topic, secret="", old_secret="")))
        await self._registry().delete(KIND, address.key)
        await self._refresh()
        return topic

    async def forget(self, address: TopicAddress) -> None:
        """Delete the record of a removed topic, after its last job has ended."""
        await self._registry().delete(REMOVED_KIND, address.key)

    async def set_rules(self, engine: Engine, address: TopicAddress) -> None:
        """Give the topic's queue the rules that the record asks for: kept, because its totals are the topic's counts,
        and offline while the topic is. Without a record the queue is not offline.

        Processes do this concurrently, and one may be late. So rules are written only if they differ from the record
        as it is now, and both are compared once more after that.
        """
        while True:
            rules = await engine.store.configure(address.queue)
            record = await self._registry().get(KIND, address.key)
            is_kept = record is not None or rules.kept
            is_offline = record is not None and _decode(record.value).status is Status.OFFLINE
            if (rules.kept, rules.offline) == (is_kept, is_offline):
                return
            await engine.store.configure(address.queue, RulesChange(kept=is_kept, offline=is_offline))

    async def _record(self, address: TopicAddress) -> Record:
        record = await self._registry().get(KIND, address.key)
        if record is None:
            raise _not_found(address)
        return record

    async def _refresh(self) -> None:
        if self._registry_copy is not None:
            await self._registry_copy.refresh()


def _secret(given: str) -> str:
    if given == NEW_SECRET:
        return SECRET_PREFIX + b64encode(secrets.token_bytes(SECRET_BYTES)).decode()
    if given:
        try:
            raw = b64decode(given.removeprefix(SECRET_PREFIX), validate=True)
        except (NotBase64, ValueError):
            raise InvalidRequest("secret must be whsec_ and base64, or 'new'", path="$.secret") from None
        if not 24 <= len(raw) <= 64:
            raise InvalidRequest(f"secret must have 24 to 64 bytes, got {len(raw)}", path="$.secret")
        return SECRET_PREFIX + b64encode(raw).decode()
    return ""


def _not_found(address: TopicAddress) -> TopicNotFound:
    return TopicNotFound(
        f"there is no topic {address.queue.name!r} in {address.queue.namespace}", topic=address.queue.name
    )


def _exists(address: TopicAddress) -> TopicExists:
    return TopicExists(
        f"there is a topic {address.queue.name!r} in {address.queue.namespace}", topic=address.queue.name
    )
