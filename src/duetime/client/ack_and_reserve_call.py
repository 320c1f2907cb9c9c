"""`queue.pop(ack=job)`: finish a job and lease the next one, in one step where the store has such a step."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from duetime.client import calls
from duetime.client.call import Call
from duetime.client.leased_job import JobInHand
from duetime.model.job import Delivery
from duetime.model.names import Queue

if TYPE_CHECKING:
    from duetime.engine import Engine


def ack_and_reserve(queue: Queue, leased: calls.Leased, ttr_ms: int) -> Call[list[Delivery] | None]:
    """Finish a job, and lease a ready job of the queue if that is possible in the same step. Raises LeaseLost.

    The answer is None if no job was looked for: the caller reserves one then.
    """
    lease = calls.lease_of(leased)
    ack = calls.ack(lease.queue, [leased])

    def acked(answers: Sequence[calls.Result]) -> None:
        calls.first(answers)
        mark_settled()

    def mark_settled() -> None:
        if isinstance(leased, JobInHand):
            leased.mark_settled()

    async def run(engine: "Engine") -> None:
        acked(await ack.run(engine))

    def run_blocking(engine: "Engine") -> list[Delivery] | None:
        found = engine.run_blocking(engine.requests.AckAndReserveRequest(queue, lease, ttr_ms))
        mark_settled()
        return found

    return Call(
        ack.request,
        lambda reply: acked(ack.parse(reply)),
        run,
        repeatable=True,
        subject=ack.subject,
        run_blocking=run_blocking if lease.queue == queue else None,
    )
