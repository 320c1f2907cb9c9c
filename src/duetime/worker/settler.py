"""How a worker tells the store what became of jobs: acks together, everything else one by one, through outages.

While an ack is under way the next ones gather, so a busy worker needs few calls. A call that fails because the store is
away is repeated until the store is back: the job is done, and only the report is late. If the lease was lost
meanwhile, that is the answer.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from duetime.client import AsyncClient, calls
from duetime.client.call import Call
from duetime.client.calls import Result
from duetime.engine.call_weights import by_weight, finish_weight
from duetime.model.backoff import Outage
from duetime.model.errors import DuetimeError, LeaseLost, StoreUnavailable
from duetime.model.job import batches
from duetime.model.names import Queue
from duetime.stores.base import Finish, Finished
from duetime.worker.retry_rules import Decision, Verb
from duetime.worker.runs import Failure, Run

log = logging.getLogger("duetime.worker")

Settled = Callable[[Run, Decision, Result], None]
Spawn = Callable[[Coroutine[Any, Any, None]], object]
FinishOf = Callable[[Run], Finish | None]

NOT_FINISHED = "duetime.NotFinished"


class Settler:
    """`settled` is called for each job with the store's answer: what moved, an error, or None if it was gone."""

    def __init__(self, client: AsyncClient, spawn: Spawn, settled: Settled, finish_of: FinishOf) -> None:
        self._client = client
        self._spawn = spawn
        self._settled = settled
        self._finish_of = finish_of
        self._acks: dict[Queue, list[tuple[Run, Decision]]] = {}
        self._busy: set[Queue] = set()
        self.failures = 0

    def settle(self, run: Run, decision: Decision) -> None:
        if decision.verb is not Verb.ACK:
            self._spawn(self._one(run, decision))
            return
        queue = run.delivery.lease.queue
        self._acks.setdefault(queue, []).append((run, decision))
        if queue not in self._busy:
            self._busy.add(queue)
            self._spawn(self._ack(queue))

    async def _ack(self, queue: Queue) -> None:
        # Runs that finish in the same loop iteration are acked together.
        await asyncio.sleep(0)
        try:
            while some := self._acks.pop(queue, None):
                for batch in batches(some):
                    await self._ack_some(queue, batch)
        finally:
            self._busy.discard(queue)

    async def _ack_some(self, queue: Queue, some: Sequence[tuple[Run, Decision]]) -> None:
        plain: list[tuple[Run, Decision]] = []
        full: list[tuple[Run, Decision, Finish]] = []
        for run, decision in some:
            finish = self._finish_of(run)
            if finish is None:
                plain.append((run, decision))
            else:
                full.append((run, decision, finish))
        for batch, _ in by_weight(full, [finish_weight(finish) for _, _, finish in full]):
            await self._finish_some(queue, batch)
        if plain:
            await self._ack_plain(queue, plain)

    async def _finish_some(self, queue: Queue, some: Sequence[tuple[Run, Decision, Finish]]) -> None:
        """One that is refused fails its whole call, so the others are then finished one by one."""
        try:
            answers: Sequence[Finished | DuetimeError | None]
            answers = await self._persist(calls.finish(queue, [finish for _, _, finish in some]))
        except DuetimeError as error:
            if len(some) > 1:
                for one in some:
                    await self._finish_some(queue, [one])
                return
            answers = [error]
        for (run, decision, _), answer in zip(some, answers, strict=True):
            match answer:
                case DuetimeError() if not isinstance(answer, LeaseLost):
                    failure = Failure(NOT_FINISHED, f"the job is done, and what follows was refused: {answer.message}")
                    await self._one(run, Decision(Verb.KILL, failure=failure, failed=True))
                case Finished():
                    self._settled(run, decision, answer.acked)
                case _:
                    self._settled(run, decision, answer)

    async def _ack_plain(self, queue: Queue, some: Sequence[tuple[Run, Decision]]) -> None:
        call = calls.ack(queue, [run.delivery.lease for run, _ in some])
        try:
            answers: Sequence[Result] = await self._persist(call)
        except DuetimeError as error:
            answers = [error] * len(some)
        for (run, decision), answer in zip(some, answers, strict=True):
            self._settled(run, decision, answer)

    async def _one(self, run: Run, decision: Decision) -> None:
        lease, error = run.delivery.lease, error_text(decision)
        match decision.verb:
            case Verb.RELEASE:
                call = calls.release(lease, f"{decision.delay_ms}ms", error)
            case Verb.KILL:
                call = calls.kill(lease, error)
            case Verb.GIVE_BACK | Verb.ACK:
                call = calls.give_back(lease, f"{decision.delay_ms}ms" if decision.by_hand else None)
        try:
            answer: Result = await self._persist(call)
        except DuetimeError as refusal:
            answer = refusal
        self._settled(run, decision, answer)

    async def _persist(self, call: Call[Any]) -> Any:
        """Repeat until the store has answered; an answer that was lost may turn into LeaseLost."""
        outage = Outage()
        while True:
            try:
                answer = await self._client.send(call)
            except StoreUnavailable as error:
                self.failures += 1
                if outage.failed():
                    log.warning("store_unavailable", extra={"error": error.message})
                await asyncio.sleep(outage.pause_s)
            else:
                return answer


class LeaseKeeper:
    """Renews the leases of what a worker holds, from the moment a third of one is over."""

    def __init__(self, client: AsyncClient, spawn: Spawn, lease_s: float, lost: Callable[[Run], None]) -> None:
        self._client = client
        self._spawn = spawn
        self._lease_s = lease_s
        self._lost = lost
        self.pause_s = lease_s / 20

    def check(self, runs: Sequence[Run], now: float) -> None:
        for run in runs:
            if run.lease_until - now < self._lease_s * 2 / 3 and not run.renewing and not run.lost:
                run.renewing = True
                self._spawn(self._renew(run, now))

    async def _renew(self, run: Run, now: float) -> None:
        try:
            await self._client.send(calls.extend(run.delivery.lease, self._lease_s))
            run.lease_until = now + self._lease_s
        except LeaseLost:
            if not run.ended_at:
                run.lost = True
                self._lost(run)
        except DuetimeError as error:
            log.warning("renewal_failed", extra={"job": run.delivery.lease.id, "error": error.message})
        finally:
            run.renewing = False


def error_text(decision: Decision) -> str:
    if decision.failure is None:
        return ""
    return decision.failure.traceback or str(decision.failure)
