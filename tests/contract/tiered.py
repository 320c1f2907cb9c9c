"""A tiered pool in the contract suite: what is due within its horizon is promoted before each call."""

from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from duetime.stores.forwarding import ForwardingStore
from duetime.stores.tiered.store import TieredStore

P = ParamSpec("P")
T = TypeVar("T")

_TAKEN_BACK = """
    test_a_job_due_in_2100_is_the_next
    test_a_job_whose_time_is_over_counts_when_it_is_met
    test_another_process_gets_notified_of_results
    test_jobs_in_every_state_count
    test_ping_returns_the_kind_and_the_time
    test_random_sequences_on_jobs
    test_random_sequences_on_the_registry
"""
NOT_IN_TIERS = frozenset(_TAKEN_BACK.split())
"""What the contract promises and `stores/tiered/store.py` takes back; the random sequences compare just that, too."""


class Promoting(ForwardingStore):
    """The clock of a test stands still, so the promoter has always been there before the next call."""

    def __init__(self, inner: TieredStore) -> None:
        super().__init__(inner)
        self._promoter = inner.promoter

    async def _call(self, verb: str, call: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T:
        await self._promoter.run_once()
        return await call(*args, **options)
