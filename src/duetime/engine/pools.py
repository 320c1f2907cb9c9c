"""Pools: named engines, each on a store of its own.

A pool that cannot be reached at the start, or whose engine breaks, is opened again in the background and affects only
its own namespaces: `engine(name)` raises StoreUnavailable for it, every other pool works on. The engine of an open
store handles outages of that store itself. Wrong settings (an unknown scheme, a missing driver) are raised at the
start, because waiting does not correct them.

    async with Pools({"default": "sqlite:///jobs.db"}, open_store=open_store) as pools:
        await pools.engine("default").push(queue, [NewJob(id, body)])
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

from msgspec import structs

from duetime.duties import Rounds, run_duty
from duetime.engine.engine import Engine
from duetime.engine.recorder import Recorded
from duetime.engine.registry_copy import RegistryCopy
from duetime.model.errors import (
    Conflict,
    DuetimeError,
    InvalidName,
    InvalidRequest,
    InvalidSettings,
    PoolNotFound,
    StoreUnavailable,
    VersionConflict,
)
from duetime.model.job import MAX_BODY
from duetime.model.masking import mask
from duetime.model.names import DEFAULT_POOL
from duetime.model.priority_shares import PriorityShares, Shares, read_ratio
from duetime.model.settings import pool_parts
from duetime.stores.base import Store, StoreInfo
from duetime.stores.registry import POOL, SHARES, Registry

log = logging.getLogger("duetime.pools")

REGISTRY = "(registry)"
"""The name of a store that is only used for the registry. No pool can have this name."""
FIRST_WAIT_S = 5.0
"""How long the start waits for pools that do not answer."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,255}", re.ASCII)

OpenStore = Callable[[str], Awaitable[Store]]
Watch = Callable[[str, Store], Awaitable[Recorded]]
"""Takes a pool's name and its store."""


async def unrecorded(pool: str, store: Store) -> Recorded:
    return Recorded(store)


def check_pool_name(name: str) -> str:
    """Raises InvalidSettings."""
    if not _NAME.fullmatch(name):
        raise InvalidSettings(f"pool name must consist of ASCII letters, digits, '-' and '_', got {name!r}")
    return name


class Pool:
    """One store and, while that is open, the engine on it. `error` is why the store is not open."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.url = url
        self.engine: Engine | None = None
        self.error: DuetimeError | None = None
        self.tried = asyncio.Event()
        self.stop = asyncio.Event()

    def not_open(self) -> StoreUnavailable:
        return StoreUnavailable(f"the pool {self.name!r} is not open")


class Pools:
    """An async context manager: inside it the pools are open, or being opened.

    The registry is the default pool's, unless `registry_url` names another store; if that is also a pool's URL, the
    two share it. `watch` chooses the recorders of each pool's engine. `make_engine` takes the arguments of an
    Engine; another kind of engine is set before this is entered.
    """

    make_engine: Callable[..., Engine] = Engine

    def __init__(
        self,
        urls: Mapping[str, str],
        *,
        open_store: OpenStore,
        registry_url: str = "",
        max_body: int = MAX_BODY,
        shares: PriorityShares = PriorityShares(),  # noqa: B008 (frozen)
        watch: Watch = unrecorded,
    ) -> None:
        if DEFAULT_POOL not in urls:
            raise InvalidSettings(f"there must be a pool {DEFAULT_POOL!r}")
        for name in urls:
            check_pool_name(name)
        self._open_store = open_store
        self._watch = watch
        self._max_body, self.shares = max_body, shares
        self.fixed = frozenset(urls)
        self._pools = {name: Pool(name, url) for name, url in urls.items()}
        self._registry_pool = self._choose_registry(registry_url)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.on_added: list[Callable[[str], None]] = []
        """Called with the name of each pool that is added later."""

    def _choose_registry(self, url: str) -> Pool:
        if not url:
            return self._pools[DEFAULT_POOL]
        shared = (pool for pool in self._pools.values() if pool.url == url)
        return next(shared, None) or Pool(REGISTRY, url)

    @property
    def _all(self) -> dict[str, Pool]:
        """The pools, and the store of the registry if that is none of them."""
        return {**self._pools, self._registry_pool.name: self._registry_pool}

    async def __aenter__(self) -> "Pools":
        self._tasks = {name: self._keep(pool) for name, pool in self._all.items()}
        attempts = [asyncio.create_task(pool.tried.wait()) for pool in self._all.values()]
        try:
            await asyncio.wait(attempts, timeout=FIRST_WAIT_S)
            for pool in self._all.values():
                if isinstance(pool.error, InvalidSettings):
                    raise pool.error
        except BaseException:
            await self._close()
            raise
        finally:
            for attempt in attempts:
                attempt.cancel()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def _close(self) -> None:
        """Let open engines finish their calls under way, and cancel the opening of the other pools."""
        for name, task in self._tasks.items():
            self._all[name].stop.set()
            if self._all[name].engine is None:
                task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def add(self, name: str, url: str) -> None:
        """Open one more pool in the background."""
        pool = self._pools[name] = Pool(name, url)
        self._tasks[name] = self._keep(pool)
        for listener in self.on_added:
            listener(name)

    async def remove(self, name: str) -> None:
        """Close a pool. Its jobs stay in its store."""
        pool, task = self._pools.pop(name), self._tasks.pop(name)
        pool.stop.set()
        if pool.engine is None:
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def register(self, name: str, url: str) -> None:
        """Register a pool in this registry, as `register_pool` does. Names of pools in the settings are refused."""
        await register_pool(self.registry, name, url, open_store=self._open_store, taken=self.fixed)

    async def check_store(self, url: str) -> StoreInfo:
        return await check_store(url, self._open_store)

    def set_shares(self, shares: PriorityShares) -> None:
        self.shares = shares
        for pool in self._all.values():
            if pool.engine is not None:
                pool.engine.set_shares(shares)

    async def until_tried(self, names: Iterable[str]) -> None:
        """Wait a moment until each of them is open or has failed to open."""
        attempts = [asyncio.create_task(self._pools[name].tried.wait()) for name in names]
        if attempts:
            await asyncio.wait(attempts, timeout=FIRST_WAIT_S)
        for attempt in attempts:
            attempt.cancel()

    @property
    def names(self) -> list[str]:
        return sorted(self._pools)

    @property
    def urls(self) -> Mapping[str, str]:
        return {name: pool.url for name, pool in self._pools.items()}

    def __contains__(self, name: object) -> bool:
        return name in self._pools

    def engine(self, name: str) -> Engine:
        """Raises PoolNotFound, or StoreUnavailable while the pool is not open."""
        pool = self._pools.get(name)
        if pool is None:
            raise PoolNotFound.of(name)
        if pool.engine is None:
            raise pool.not_open()
        return pool.engine

    @property
    def registry(self) -> Registry:
        """Raises StoreUnavailable while its store is not open."""
        if self._registry_pool.engine is None:
            raise self._registry_pool.not_open()
        return self._registry_pool.engine.store.registry

    def errors(self) -> Mapping[str, DuetimeError]:
        """Why pools are not open, by name; empty when all are."""
        return {name: pool.error for name, pool in self._all.items() if pool.error is not None}

    def parked(self) -> Mapping[str, int]:
        """How many consumers wait for a job, by pool; that of the registry's store is among them."""
        return {name: pool.engine.parked if pool.engine else 0 for name, pool in self._all.items()}

    def _keep(self, pool: Pool) -> asyncio.Task[None]:
        """Hold the pool open until the end, opening it again whenever it broke."""
        return asyncio.create_task(run_duty(Rounds(f"pool {pool.name}", lambda: self._serve(pool))))

    async def _open(self, pool: Pool) -> Recorded:
        store = await self._open_store(pool.url)
        try:
            return await self._watch(pool.name, store)
        except BaseException:
            await store.close()
            raise

    async def _serve(self, pool: Pool) -> None:
        """Raises the DuetimeError that keeps the pool from being open, unless only a change of its settings helps."""
        try:
            store, recorders = await self._open(pool)
        except DuetimeError as error:
            pool.error = error
            pool.tried.set()
            if isinstance(error, InvalidSettings):
                return
            raise
        try:
            async with self.make_engine(
                store, max_body=self._max_body, recorders=recorders, shares=self.shares
            ) as engine:
                pool.engine, pool.error = engine, None
                pool.tried.set()
                log.info("pool_open", extra={"pool": pool.name})
                await pool.stop.wait()
        except Exception as error:  # a bug in the engine of one pool must not end the others
            log.exception("pool_broken", extra={"pool": pool.name})
            pool.error = StoreUnavailable(f"the pool {pool.name!r} broke: {type(error).__name__}")
            if not pool.stop.is_set():
                raise pool.error from error
        finally:
            pool.engine = None
            await store.close()


class RegisteredPools:
    """Opens and closes the pools that records of the registry name, and applies the shares of priorities that it has
    for namespaces, in every process within a second. Pools of the settings are not touched. An async context manager.
    """

    def __init__(self, pools: Pools, copy: RegistryCopy) -> None:
        self._pools, self._copy = pools, copy
        self._version = self._generation = -1
        self._shares, self._shares_generation = pools.shares, 0
        self.loops: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "RegisteredPools":
        await self._pools.until_tried(await self._apply())
        self.loops = [asyncio.create_task(run_duty(Rounds("registered pools", self._follow), survives_bugs=True))]
        return self

    async def __aexit__(self, *_: object) -> None:
        for loop in self.loops:
            loop.cancel()
        await asyncio.gather(*self.loops, return_exceptions=True)

    async def _follow(self) -> float:
        self._version = await self._copy.changed(self._version)
        await self._apply()
        return 0

    async def _apply(self) -> list[str]:
        """Returns the names of the pools that were added."""
        if self._shares_generation != self._copy.generations[SHARES]:
            self._shares_generation = self._copy.generations[SHARES]
            changed: dict[str, Shares] = {}
            for one in self._copy.list_records(SHARES):
                try:
                    changed[one.key] = read_ratio(one.value.decode(errors="replace"))
                except InvalidSettings as error:
                    log.warning("shares_unreadable", extra={"namespace": one.key, "error": error.message})
            self._pools.set_shares(structs.replace(self._shares, namespaces={**self._shares.namespaces, **changed}))
        if self._generation == self._copy.generations[POOL]:
            return []
        self._generation = self._copy.generations[POOL]
        wanted = {record.key: record.value.decode(errors="replace") for record in self._copy.list_records(POOL)}
        for name, url in self._pools.urls.items():
            if name not in self._pools.fixed and wanted.get(name) != url:
                await self._pools.remove(name)
        added = [name for name in wanted if name not in self._pools]
        for name in added:
            self._pools.add(name, wanted[name])
        return added


LOCAL_SCHEMES = ("memory:", "sqlite:")


async def registered_pools(registry: Registry) -> dict[str, str]:
    """The pools in addition to those of the settings, with their URLs as they may be shown."""
    return {record.key: mask(record.value.decode()) for record in await registry.list_records(POOL)}


async def check_store(url: str, open_store: OpenStore) -> StoreInfo:
    """Open a store once. Raises InvalidRequest if its URL is wrong, if it does not answer, or if other processes cannot
    reach it.
    """
    if _is_local(url):
        raise InvalidRequest(f"store URL must name a server that every process can reach, got {mask(url)}")
    try:
        async with asyncio.timeout(FIRST_WAIT_S):
            store = await open_store(url)
            try:
                return await store.ping()
            finally:
                await store.close()
    except (StoreUnavailable, InvalidSettings) as error:
        raise InvalidRequest(f"store cannot be opened: {error.message}") from None
    except TimeoutError:
        raise InvalidRequest(f"store did not answer within {FIRST_WAIT_S:.0f} s: {mask(url)}") from None


def _is_local(url: str) -> bool:
    parts = pool_parts(url)
    return any(map(_is_local, parts.values())) if parts else url.startswith(LOCAL_SCHEMES)


async def register_pool(
    registry: Registry, name: str, url: str, *, open_store: OpenStore, taken: Collection[str] = ()
) -> dict[str, str]:
    """Name a pool in the registry after its store was opened once. Raises InvalidName, InvalidRequest, Conflict."""
    try:
        check_pool_name(name)
    except InvalidSettings as error:
        raise InvalidName(error.message) from None
    if name == DEFAULT_POOL or name in taken:
        raise Conflict(f"pool {name!r} is there already: change it in the settings")
    await check_store(url, open_store)
    try:
        await registry.put(POOL, name, url.encode(), if_version=0)
    except VersionConflict:
        raise Conflict(f"pool {name!r} is there already: remove it first") from None
    return await registered_pools(registry)


async def unregister_pool(registry: Registry, name: str) -> dict[str, str]:
    """Remove a pool from the registry; its jobs stay in its store. Raises PoolNotFound."""
    if not await registry.delete(POOL, name):
        raise PoolNotFound(f"pool {name!r} is not in the registry: pools of the settings are removed there")
    return await registered_pools(registry)
