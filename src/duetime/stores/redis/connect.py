"""Makes a link from a URL: to one Redis, to one behind Sentinels, or to a Cluster.

    redis://[user:password@]host[:6379][/db]
    rediss://...                                             the same over TLS
    redis+sentinel://[user:password@]host[:26379],.../service[/db]
    redis+cluster://[user:password@]host[:6379],...

Options in the query: `timeout` (seconds to wait for an answer, 5), `tls` (1 for Sentinel and Cluster over TLS), `ca`,
`cert`, `key` (files), `sentinel_password`.
"""

import asyncio
import ssl
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from redis.asyncio.connection import Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import MovedError, ResponseError

from duetime.model.errors import InvalidSettings
from duetime.stores.redis.link import Link, RedisNode, RedisWire, Topology, target
from duetime.stores.redis.pipe import Argument, Login, Lost, Unsent, pack

OPTIONS = {"timeout", "tls", "ca", "cert", "key", "sentinel_password"}
RENEW_PAUSE_S = 0.1
"""A topology that was read within this time is not read again."""
FOLLOW_S = 1.0
"""How often Sentinels are asked whether they name another primary."""
FOLLOW_WAIT_S = 0.1
"""How long a call waits for their answer before it goes to the last primary."""


@dataclass(frozen=True)
class Address:
    """The parts of a store URL."""

    scheme: str
    hosts: tuple[tuple[str, int], ...]
    username: str | None = None
    password: str | None = None
    service: str = ""
    db: int = 0
    options: tuple[tuple[str, str], ...] = ()

    def option(self, name: str, default: str = "") -> str:
        return dict(self.options).get(name, default)

    @property
    def is_tls(self) -> bool:
        return self.scheme == "rediss" or self.option("tls") in {"1", "true", "yes"}

    @property
    def tls_files(self) -> dict[str, Any]:
        """The files of the options `ca`, `cert` and `key`, by redis-py's names for them."""
        names = {"ca": "ssl_ca_certs", "cert": "ssl_certfile", "key": "ssl_keyfile"}
        return {names[name]: value for name, value in self.options if name in names and value}


def parse_address(url: str) -> Address:
    parts = urlsplit(url)
    credentials, _, hosts = parts.netloc.rpartition("@")
    username, _, password = credentials.partition(":")
    options = tuple(parse_qsl(parts.query))
    named = options and OPTIONS.issuperset(name for name, _ in options)
    if "@" in parts.path + parts.fragment or ("@" in parts.query and not named):
        # The text read as a host, a database or an option may be a part of the password, so nothing of it is shown.
        raise InvalidSettings("user and password of a Redis URL must be percent-encoded: / is %2F, ? is %3F, # is %23")
    if unknown := {name for name, _ in options} - OPTIONS:
        raise InvalidSettings(f"unknown options in a Redis URL: {', '.join(sorted(unknown))}")
    path = [unquote(part) for part in parts.path.split("/")[1:] if part]
    service = path.pop(0) if parts.scheme == "redis+sentinel" and path else ""
    if parts.scheme == "redis+sentinel" and not service:
        raise InvalidSettings("a Sentinel URL must name a service: redis+sentinel://host:26379/service")
    if (
        len(path) > 1
        or (path and not (path[0].isdecimal() and len(path[0]) < 10))
        or (path != [] and parts.scheme == "redis+cluster")
    ):
        raise InvalidSettings(f"the database in a Redis URL must be a number, got {'/'.join(path)!r:.50}")
    default_port = 26379 if parts.scheme == "redis+sentinel" else 6379
    return Address(
        scheme=parts.scheme,
        hosts=tuple(_parse_host(host, default_port) for host in hosts.split(",")),
        username=unquote(username) or None,
        password=unquote(password) or None,
        service=service,
        db=int(path[0]) if path else 0,
        options=options,
    )


def _parse_host(text: str, default_port: int) -> tuple[str, int]:
    host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        host, port = text, str(default_port)
    if not port.isdecimal():
        raise InvalidSettings(f"a Redis URL must have host:port, got {text!r}")
    return host.strip("[]") or "localhost", int(port)


def connect(url: str) -> Link:
    """Make the link of a URL; it connects with its first command."""
    address = parse_address(url)
    timeout_s = _timeout_s(address)
    maker = _NodeMaker(address, _login(address), timeout_s)
    match address.scheme:
        case "redis+cluster":
            return Link(Cluster(address, maker), timeout_s)
        case "redis+sentinel":
            login = Login(password=address.option("sentinel_password") or None, tls=_tls(address))
            return Link(Sentinel(address, maker, _NodeMaker(address, login, min(timeout_s, 1.0))), timeout_s)
        case _:
            return Link(SingleRedis(maker.make(*address.hosts[0])), timeout_s)


class SingleAddress(NamedTuple):
    """What a connection to a Redis without Sentinels and Cluster needs."""

    host: str
    port: int
    login: Login
    timeout_s: float


def single_address(url: str) -> SingleAddress | None:
    """Returns None for the URL of a Sentinel or a Cluster."""
    address = parse_address(url)
    if address.scheme in {"redis+cluster", "redis+sentinel"}:
        return None
    return SingleAddress(*address.hosts[0], _login(address), _timeout_s(address))


def _timeout_s(address: Address) -> float:
    try:
        return float(address.option("timeout", "5"))
    except ValueError as error:
        raise InvalidSettings(f"timeout in a Redis URL must be a number: {error}") from None


def _login(address: Address) -> Login:
    return Login(address.username, address.password, address.db, _tls(address))


def _tls(address: Address) -> ssl.SSLContext | None:
    if not address.is_tls:
        return None
    try:
        context = ssl.create_default_context(cafile=address.option("ca") or None)
        if certificate := address.option("cert"):
            context.load_cert_chain(certificate, address.option("key") or None)
    except OSError as error:
        raise InvalidSettings(f"cannot read a certificate of the Redis URL: {error}") from None
    return context


@dataclass(frozen=True)
class _NodeMaker:
    address: Address
    login: Login
    timeout_s: float

    def make(self, host: str, port: int) -> RedisNode:
        return RedisNode(host, port, self._dial, login=self.login, timeout_s=self.timeout_s)

    def _dial(self, host: str, port: int) -> RedisWire:
        """For subscriptions. One attempt and no deadline of the driver's own: the link repeats and watches the time."""
        settings: dict[str, Any] = {
            "username": self.login.username,
            "password": self.login.password,
            "db": self.login.db,
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
            "socket_timeout": None,
            "socket_connect_timeout": None,
            "socket_keepalive": True,
        }
        if not self.address.is_tls:
            return cast(RedisWire, Connection(host=host, port=port, **settings))
        return cast(RedisWire, SSLConnection(host=host, port=port, **settings, **self.address.tls_files))


class SingleRedis:
    """One Redis."""

    def __init__(self, node: RedisNode) -> None:
        self._node = self.only = node

    async def node(self, key: Argument) -> RedisNode:
        return self._node

    async def any_node(self) -> RedisNode:
        return self._node

    async def renew(self, failed: RedisNode | None) -> None: ...

    def moved(self, error: MovedError) -> None: ...

    def at(self, host: str, port: int) -> RedisNode:
        return self._node

    async def close(self) -> None:
        await self._node.close()


class _Renewing:
    """A topology that is read from servers. Callers that renew it at the same time share one answer."""

    only = None

    def __init__(self, maker: _NodeMaker) -> None:
        self._maker = maker
        self._nodes: dict[tuple[str, int], RedisNode] = {}
        self._lock = asyncio.Lock()
        self._renewed_at = float("-inf")

    def at(self, host: str, port: int) -> RedisNode:
        node = self._nodes.get((host, port))
        if node is None:
            node = self._nodes[host, port] = self._maker.make(host, port)
        return node

    async def renew(self, failed: RedisNode | None) -> None:
        asked_at = asyncio.get_running_loop().time()
        async with self._lock:
            if self._renewed_at < asked_at - RENEW_PAUSE_S:
                await self._read_topology(failed)
                self._renewed_at = asyncio.get_running_loop().time()

    async def _read_topology(self, failed: RedisNode | None) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        for node in self._nodes.values():
            await node.close()


class Sentinel(_Renewing):
    """The primary that the Sentinels name.

    One call a second asks for it again: Sentinels let a healthy primary go on for about ten seconds after they have
    named another one, and what it accepts then is lost. While Sentinels do not answer, the last primary serves.
    """

    def __init__(self, address: Address, maker: _NodeMaker, asker: _NodeMaker) -> None:
        super().__init__(maker)
        self._service = address.service
        self._sentinels = [asker.make(*host) for host in address.hosts]
        self._primary: RedisNode | None = None
        self._checked_at = float("-inf")
        self._following: asyncio.Task[None] | None = None

    async def node(self, key: Argument) -> RedisNode:
        return await self.any_node()

    async def any_node(self) -> RedisNode:
        now = asyncio.get_running_loop().time()
        if self._primary is None:
            await self.renew(None)
        elif self._checked_at < now - FOLLOW_S and (self._following is None or self._following.done()):
            self._checked_at = now  # the other callers do not wait
            self._following = asyncio.create_task(self._follow())
            await asyncio.wait([self._following], timeout=FOLLOW_WAIT_S)
        if self._primary is None:
            raise Unsent(f"no Sentinel names a primary for {self._service!r}")
        return self._primary

    async def _follow(self) -> None:
        with suppress(Unsent):
            await self.renew(None)

    def moved(self, error: MovedError) -> None: ...

    async def _read_topology(self, failed: RedisNode | None) -> None:
        question = pack(("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service))
        problems: list[str] = []
        for sentinel in list(self._sentinels):
            try:
                answer = (await sentinel.run(question))[0]
            except (Unsent, Lost) as error:
                problems.append(str(error))
                continue
            if isinstance(answer, list):
                host, port = cast(list[bytes], answer)
                self._primary = self.at(host.decode(), int(port))
                # Ask this one first next time.
                self._sentinels.remove(sentinel)
                self._sentinels.insert(0, sentinel)
                return
            problems.append(f"{sentinel.host}:{sentinel.port} does not know it")
        raise Unsent(f"no Sentinel names a primary for {self._service!r}: {'; '.join(problems)}")

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        await super().close()
        for sentinel in self._sentinels:
            await sentinel.close()


class Cluster(_Renewing):
    """The nodes of a Redis Cluster, by slot."""

    def __init__(self, address: Address, maker: _NodeMaker) -> None:
        super().__init__(maker)
        self._seeds = address.hosts
        self._slots: dict[int, RedisNode] = {}

    async def node(self, key: Argument) -> RedisNode:
        if not self._slots:
            await self.renew(None)
        slot = key_slot(key if isinstance(key, bytes) else str(key).encode())
        try:
            return self._slots[slot]
        except KeyError:
            raise Unsent(f"no node of the Cluster has the slot {slot}") from None

    async def any_node(self) -> RedisNode:
        if not self._slots:
            await self.renew(None)
        if not self._slots:
            raise Unsent("no node of the Cluster is known")
        return next(iter(self._slots.values()))

    def moved(self, error: MovedError) -> None:
        self._slots[error.slot_id] = self.at(*target(error))

    async def _read_topology(self, failed: RedisNode | None) -> None:
        known = {(node.host, node.port) for node in self._slots.values()}
        problems: list[str] = []
        avoided = {(failed.host, failed.port)} if failed else set[tuple[str, int]]()
        for host, port in sorted({*known, *self._seeds}, key=lambda address: address in avoided):
            try:
                answer = (await self.at(host, port).run(pack(("CLUSTER", "SLOTS"))))[0]
            except (Unsent, Lost) as error:
                problems.append(str(error))
                continue
            if isinstance(answer, ResponseError):
                problems.append(f"{host}:{port}: {answer}")
                continue
            self._read_slots(cast(list[list[Any]], answer), host)
            return
        raise Unsent(f"no node of the Cluster answers: {'; '.join(problems)}")

    def _read_slots(self, ranges: list[list[Any]], asked: str) -> None:
        slots: dict[int, RedisNode] = {}
        for first, last, primary, *_ in ranges:
            # A node without a name in the answer is the one that was asked.
            node = self.at(primary[0].decode() if primary[0] else asked, int(primary[1]))
            slots.update(dict.fromkeys(range(int(first), int(last) + 1), node))
        self._slots = slots


_topologies: tuple[type[Topology], ...] = (SingleRedis, Sentinel, Cluster)
