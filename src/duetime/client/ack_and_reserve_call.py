"""`queue.pop(ack=job)`: finish a job and lease the next one, in one step where the store has such a step."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from duetime.client import calls
from duetime.client.call import Call, then
from duetime.client.leased_job import JobInHand
from duetime.model.job import Delivery
from duetime.model.names import Queue

if TYPE_CHECKING:
    from duetime.engine.direct_steps import DirectSteps


def ack_first(leased: calls.Leased) -> Call[None]:
    """Finish a job, before another one is looked for. Raises LeaseLost."""

    def settled(answers: Sequence[calls.Result]) -> None:
        calls.first(answers)
        _mark_settled(leased)

    return then(calls.ack(calls.lease_of(leased).queue, [leased]), settled)


def ack_and_reserve(steps: "DirectSteps", queue: Queue, leased: calls.Leased, ttr_ms: int) -> list[Delivery] | None:
    """Finish a job and lease one of the queue, if one is ready, in one step. None: nothing was done."""
    lease = calls.lease_of(leased)
    found = steps.ack_and_reserve(lease, ttr_ms) if lease.queue == queue else None
    if found is not None:
        _mark_settled(leased)
    return found


def _mark_settled(leased: calls.Leased) -> None:
    if isinstance(leased, JobInHand):
        leased.mark_settled()
