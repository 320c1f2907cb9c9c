"""How workers manage batches: which jobs they run, and what follows from their ends.

The keeper of a batch is a job in the queue `duetime.batches`. The worker that gets it reads the counts of the batch
and gives it back for the next check. What follows (`catch`, `then`, `finally`) is pushed by the keeper's `finish`: in
the same atomic step the keeper is gone, or is there again with what it now knows. So a worker that is killed at any
point loses nothing; and since each callback has an id and a mark of its own, nothing is pushed twice.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from duetime.client.calls import (
    ack,
    configure,
    finish,
    get,
    give_back,
    kill,
    release,
    reschedule,
    reserve,
    status,
    totals,
)
from duetime.model.errors import NOT_JSON, DuetimeError, Forbidden, LeaseLost
from duetime.model.job import DAY_MS, Delivery, NewJob, chunks
from duetime.model.names import FOLLOWS, check_queue
from duetime.stores.base import RulesChange
from duetime.stores.finishes import Finish
from duetime.worker.batches import (
    KEEPERS,
    BatchRecord,
    BatchStatus,
    cancel_waiting,
    describe_batch,
    keeper_job,
    list_keepers,
    read_keeper,
)
from duetime.worker.chains import FORWARD, ChainedStep, filled_body, forward
from duetime.worker.pusher import send_work_async

if TYPE_CHECKING:
    from duetime.worker.app import App

log = logging.getLogger("duetime.worker")

CHECK_MS = 900
CALM_CHECK_MS = 5_000
"""The pause between two checks of a batch in which nothing runs or is due, or that has nothing but dead letters."""
REFUSED_MS = 5_000
"""The pause before what was refused is tried again."""
TTR_S = 30
MOST = 100
"""Batches that one worker serves, and keepers that it checks in a second."""
KEPT_MS = 7 * DAY_MS
"""How long after the end of a batch it is known how it ended."""


class KeeperForward(Struct):
    """The body of a job that brings a callback to its queue."""

    job: str
    data: "ForwardData"


class ForwardData(Struct):
    step: ChainedStep


class BatchKeeper:
    """`batches` are those that are not over, as last seen."""

    def __init__(self, app: "App") -> None:
        self._app = app
        self._keepers = check_queue(app.namespace, KEEPERS)
        self.batches: Mapping[str, BatchRecord] = {}

    def queues(self, served: Sequence[str]) -> tuple[str, ...]:
        """The queues with their batches: each queue before its batches, an older batch before a younger one."""
        of = {name: list[str]() for name in served}
        for batch_id, record in list(self.batches.items())[:MOST]:
            if record.queue in of:
                of[record.queue].append(batch_id)
        return tuple(one for name in served for one in (name, *of[name]))

    async def check(self) -> bool:
        """List the batches, and check those that are due. Returns whether anything changed. A batch that is refused,
        because the queue of its callback is full for example, waits without holding up the others. Raises
        DuetimeError.
        """
        seen = await self._app.send_async(status(self._keepers))
        if not seen.counts.total:
            self.batches = {}
            return False
        await self._learn()
        call = reserve(self._keepers.namespace, [self._keepers], MOST, TTR_S, 0)
        acted = False
        for delivery in await self._app.send_async(call):
            try:
                acted = await self._handle(delivery) or acted
            except LeaseLost:  # somebody has changed the batch meanwhile; its new keeper is due
                acted = True
            except NOT_JSON as error:
                await self._app.send_async(kill(delivery, f"this is no batch: {error}"))
            except DuetimeError as error:
                log.warning("batch_waits", extra={"batch": delivery.lease.id, "error": error.message})
                with suppress(LeaseLost):
                    await self._app.send_async(release(delivery, f"{REFUSED_MS}ms", error.message))
        return acted

    async def check_now(self) -> bool:
        """Check every batch, whenever its next check is due."""
        await self._learn()
        for some in chunks(list(self.batches)):
            await self._app.send_async(reschedule(self._keepers, some, 0, None))
        return await self.check()

    async def _learn(self) -> None:
        found = await send_work_async(self._app, list_keepers(self._keepers))
        missing = [batch_id for batch_id in self.batches if batch_id not in found]
        for some in chunks(missing):  # they may have moved from one state to another meanwhile
            for job in await self._app.send_async(get(self._keepers, some)):
                if job is not None and (record := read_keeper(job.body)):
                    found[job.id] = record
        self.batches = dict(sorted(found.items(), key=lambda one: one[1].opened_at))

    async def _handle(self, delivery: Delivery) -> bool:
        record = read_keeper(delivery.body)
        if record is not None:
            return await self._keep(delivery, record)
        carried = msgspec.json.decode(delivery.body, type=KeeperForward)
        await forward(self._app, carried.data.step)
        await self._app.send_async(ack(self._keepers, [delivery]))
        return True

    async def _keep(self, delivery: Delivery, record: BatchRecord) -> bool:
        batch_id = delivery.lease.id
        queue = check_queue(self._keepers.namespace, batch_id)
        if record.cancelled and await send_work_async(self._app, cancel_waiting(queue)):
            await self._again(delivery, 0)
            return True
        seen = await self._app.send_async(status(queue))
        counts, counted = seen.counts, (await self._app.send_async(totals(queue))).running
        if counted.dead and not record.caught:
            caught = replace(record, caught=True, cancelled=record.cancelled or not record.allow_failures)
            summary = describe_batch(batch_id, caught, counts, counted, paused=seen.rules.paused)
            await self._finish(delivery, ["catch"], caught, summary, is_kept=True)
            return True
        is_empty = counts.ready + counts.delayed + counts.leased == 0
        is_over = is_empty and (record.closed or record.cancelled)
        if not is_over or (record.ended_at and counts.dead):
            busy = counts.ready or counts.leased or (is_over and not record.ended_at)
            await self._again(delivery, CHECK_MS if busy else CALM_CHECK_MS)
            return False
        ended = record if record.ended_at else replace(record, ended_at=counts.now)
        all_done = not record.cancelled and counted.dead == counted.respawned
        all_done = all_done and not counted.cancelled and not counted.expired
        words = [*(["then"] if all_done else []), *([] if record.ended_at else ["finally"])]
        summary = describe_batch(batch_id, ended, counts, counted, paused=False)
        if seen.rules.paused:  # a queue with rules is never forgotten
            with suppress(Forbidden):
                await self._app.send_async(configure(queue, RulesChange(paused=False)))
        await self._finish(delivery, words, ended, summary, is_kept=counts.dead > 0)
        return True

    async def _finish(
        self,
        delivery: Delivery,
        words: Sequence[str],
        record: BatchRecord,
        summary: BatchStatus,
        *,
        is_kept: bool,
    ) -> None:
        """Push the callbacks of these names, and the keeper anew if it goes on."""
        text = msgspec.json.encode(summary)
        steps = [record.callbacks[word] for word in words if word in record.callbacks]
        jobs = [_carrier(summary.id, step, text) for step in steps]
        if is_kept:
            jobs.append(keeper_job(summary.id, record))
        one = Finish(delivery.lease, jobs, None if is_kept else text, 0 if is_kept else KEPT_MS)
        for answer in await self._app.send_async(finish(self._keepers, [one])):
            if isinstance(answer, Exception):
                raise answer

    async def _again(self, delivery: Delivery, after_ms: int) -> None:
        await self._app.send_async(give_back(delivery, f"{after_ms}ms"))


def _carrier(batch_id: str, step: ChainedStep, summary: bytes) -> NewJob:
    """The job that brings a callback to its queue, with the status of the batch as PREVIOUS."""
    filled = replace(step, body=Raw(filled_body(step, summary)), previous="")
    body: dict[str, Any] = {"job": FORWARD, "data": {"step": filled}}
    return NewJob(f"{batch_id}{FOLLOWS}{step.id}", msgspec.json.encode(body), tries=0)
