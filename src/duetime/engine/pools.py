"""Pools: named engines, each on a store of its own.

A pool that cannot be reached at the start, or whose engine breaks, is opened again in the background and affects only
its own namespaces: `engine(name)` raises StoreUnavailable for it, every other pool works on. An outage of an open
store is not seen here; its engine sits it out. Wrong settings (an unknown scheme, a missing driver) are raised at the
start, because waiting does not cure them.

    async with Pools({"default": "sqlite:///jobs.db"}, open_store=open_store) as pools:
        await pools.engine("default").push(queue, [NewJob(id, body)])
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping

from duetime.engine.engine import Engine
from duetime.engine.recorder import Recorded
from duetime.model.backoff import Outage
from duetime.model.errors import DuetimeError, InvalidSettings, PoolNotFound, StoreUnavailable
from duetime.model.job import MAX_BODY
from duetime.model.names import DEFAULT_POOL
from duetime.model.priority_shares import PriorityShares
from duetime.stores.base import Store
from duetime.stores.registry import Registry

log = logging.getLogger("duetime.pools")

REGISTRY = "(registry)"
"""The name under which a store that serves as registry only is kept; no pool can be called so."""
FIRST_WAIT_S = 5.0
"""How long the start waits for pools that do not answer."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,255}", re.ASCII)

OpenStore = Callable[[str], Awaitable[Store]]
Watch = Callable[[str, Store], Awaitable[Recorded]]
"""Takes a pool's name and its store."""


async def unrecorded(pool: str, store: Store) -> Recorded:
    return Recorded(store)


class Pool:
    """One store and, while that is open, the engine on it. `error` says why it is not."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.url = url
        self.engine: Engine | None = None
        self.error: DuetimeError | None = None
        self.tried = asyncio.Event()

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
            if not _NAME.fullmatch(name):
                raise InvalidSettings(f"a pool's name may hold ASCII letters, digits, '-' and '_': {name!r}")
        self._open_store = open_store
        self._watch = watch
        self._max_body, self._shares = max_body, shares
        self._pools = {name: Pool(name, url) for name, url in urls.items()}
        self._registry_pool = self._choose_registry(registry_url)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stop = asyncio.Event()

    def _choose_registry(self, url: str) -> Pool:
        if not url:
            return self._pools[DEFAULT_POOL]
        shared = (pool for pool in self._pools.values() if pool.url == url)
        return next(shared, None) or Pool(REGISTRY, url)

    async def __aenter__(self) -> "Pools":
        everything = {**self._pools, self._registry_pool.name: self._registry_pool}
        self._tasks = {name: asyncio.create_task(self._keep(pool)) for name, pool in everything.items()}
        attempts = [asyncio.create_task(pool.tried.wait()) for pool in everything.values()]
        try:
            await asyncio.wait(attempts, timeout=FIRST_WAIT_S)
            for task in self._tasks.values():
                if task.done():
                    task.result()
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
        """Let open engines finish what is under way; give up on those that are being opened."""
        self._stop.set()
        pools = {**self._pools, self._registry_pool.name: self._registry_pool}
        for name, task in self._tasks.items():
            if pools[name].engine is None:
                task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    @property
    def names(self) -> list[str]:
        return sorted(self._pools)

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
        pools = {**self._pools, self._registry_pool.name: self._registry_pool}
        return {name: pool.error for name, pool in pools.items() if pool.error is not None}

    def parked(self) -> Mapping[str, int]:
        """How many consumers wait for a job, by pool; that of the registry's store is among them."""
        pools = {**self._pools, self._registry_pool.name: self._registry_pool}
        return {name: pool.engine.parked if pool.engine else 0 for name, pool in pools.items()}

    async def _keep(self, pool: Pool) -> None:
        """Hold the pool open until the end, opening it again whenever it broke."""
        outage = Outage()
        while not self._stop.is_set():
            try:
                recorded = await self._open(pool)
            except InvalidSettings as error:
                self._failed(pool, error, outage)
                raise
            except DuetimeError as error:
                self._failed(pool, error, outage)
            else:
                outage.worked()
                await self._serve(pool, recorded)
                outage.failed()
            await asyncio.sleep(outage.pause_s)  # a pool that is not open is cancelled at the end

    async def _open(self, pool: Pool) -> Recorded:
        store = await self._open_store(pool.url)
        try:
            return await self._watch(pool.name, store)
        except BaseException:
            await store.close()
            raise

    async def _serve(self, pool: Pool, recorded: Recorded) -> None:
        store, recorders = recorded
        try:
            async with self.make_engine(
                store, max_body=self._max_body, recorders=recorders, shares=self._shares
            ) as engine:
                pool.engine, pool.error = engine, None
                pool.tried.set()
                log.info("pool_open", extra={"pool": pool.name})
                await self._stop.wait()
        except Exception as error:  # a bug in one pool's engine must not take the others with it
            log.exception("pool_broken", extra={"pool": pool.name})
            pool.error = StoreUnavailable(f"the pool {pool.name!r} broke: {type(error).__name__}")
        finally:
            pool.engine = None
            await store.close()

    def _failed(self, pool: Pool, error: DuetimeError, outage: Outage) -> None:
        pool.error = error
        pool.tried.set()
        if outage.failed():
            log.warning("pool_unavailable", extra={"pool": pool.name, "error": error.message})
