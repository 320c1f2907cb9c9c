"""The recorders of a server's engines: its metrics, and its journal if it keeps one."""

from collections.abc import Sequence

from duetime.engine.pools import Pools
from duetime.engine.recorder import Recorded, Recorder
from duetime.journal.journal import Journal
from duetime.journal.recorder import NodeWithoutJournal, open_journal_recorder
from duetime.metrics.meters import Meters
from duetime.metrics.process_meters import watch_journal
from duetime.metrics.recorder import MetricsRecorder, PoolMeters, TimedStore
from duetime.stores.base import Store


class PoolRecorders:
    """The recorders of all pools of a process. The journal must live longer than the pools."""

    def __init__(self, meters: Meters, journal: Journal | None = None) -> None:
        self._meters = meters
        self._journal = journal
        self._pools: dict[str, PoolMeters] = {}
        if journal:
            watch_journal(meters, journal)

    async def watch(self, pool: str, store: Store) -> Recorded:
        meters = self._pool(pool)
        timed = TimedStore(store, meters)
        return Recorded(timed, [MetricsRecorder(meters), *await self._journal_recorders(timed, pool)])

    async def _journal_recorders(self, store: Store, pool: str) -> Sequence[Recorder]:
        if self._journal:
            return await open_journal_recorder(store, self._journal, pool)
        if (await store.ping()).kind == "memory":  # no other process can make it a pool that journals
            return ()
        return [NodeWithoutJournal(store)]

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
