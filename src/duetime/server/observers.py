"""Who observes the engines of a server: its metrics, and its journal if it keeps one."""

from collections.abc import Sequence

from duetime.engine.observers import Observer, Watched
from duetime.engine.pools import Pools
from duetime.journal.journal import Journal
from duetime.journal.journal_follower import JournalFollower
from duetime.journal.observer import join_journal
from duetime.metrics.meters import Meters
from duetime.metrics.observer import MetricsObserver, TimedStore
from duetime.metrics.pool_meters import PoolMeters
from duetime.metrics.process_meters import watch_journal
from duetime.stores.base import Store


class PoolObservers:
    """The observers of all pools of a process. The journal must live longer than the pools."""

    def __init__(self, meters: Meters, journal: Journal | None = None) -> None:
        self._meters = meters
        self._journal = journal
        self._pools: dict[str, PoolMeters] = {}
        if journal:
            watch_journal(meters, journal)

    async def watch(self, pool: str, store: Store) -> Watched:
        """Raises InvalidSettings if the pool journals and this process keeps no journal."""
        meters = self._pool(pool)
        timed = TimedStore(store, meters)
        return Watched(timed, [MetricsObserver(meters), *await self._journal_observers(timed, pool)])

    async def _journal_observers(self, store: Store, pool: str) -> Sequence[Observer]:
        if self._journal:
            return await join_journal(store, self._journal, pool)
        if (await store.ping()).kind == "memory":  # no other process can make it a pool that journals
            return ()
        follower = JournalFollower(store, lambda nodes: None, told_off=True)
        await follower.begin()
        return [follower]

    def count_parked(self, pools: Pools) -> None:
        """Read before each snapshot how many consumers wait; pools that are not open yet are shown by that, too."""

        def count() -> None:
            for pool, parked in pools.parked().items():
                self._pool(pool).parked.value = parked

        self._meters.before_snapshot(count)

    def _pool(self, name: str) -> PoolMeters:
        """Survives the pool's engines: a pool that was opened again counts on."""
        if name not in self._pools:
            self._pools[name] = PoolMeters(self._meters, name)
        return self._pools[name]
