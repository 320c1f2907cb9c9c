"""Telling the observers of an engine, in its event loop, of a step for one job that was made apart from the others."""

from collections.abc import Sequence

from duetime.engine.observers import Observer, Observers
from duetime.model.errors import DuetimeError, StoreUnavailable
from duetime.model.job import Event, Lease, Moved
from duetime.model.names import Queue
from duetime.stores.base import Push, Pushed, Reserved


async def look_again(observers: Observers, verb: str) -> None:
    """A step took long, and an observer does not know any more whether it has to hear of it. Raises StoreUnavailable
    with an unknown outcome if that cannot be found out: the step was made.
    """
    if observers.must_prepare:
        try:
            await observers.prepare(verb)
        except DuetimeError as error:
            raise StoreUnavailable(f"it was done, perhaps on no record: {error.message}", unknown=True) from error


async def tell_pushed(observers: Observers, queue: Queue, request: Push, answer: Pushed | DuetimeError) -> Pushed:
    """Answers what the caller is to be told, or raises it."""
    answers: Sequence[Pushed | DuetimeError] = [answer]
    for one in observers.overriding(Observer.pushed):
        answers = await one.pushed(queue, [request], answers)
    if isinstance(answers[0], DuetimeError):
        raise answers[0]
    return answers[0]


async def tell_reserved(observers: Observers, queue: Queue, reserved: Reserved) -> Reserved:
    for one in observers.overriding(Observer.reserved):
        one.reserved(queue, reserved)
    return reserved


async def tell_acked(observers: Observers, lease: Lease, moved: Moved) -> Moved:
    for one in observers.overriding(Observer.acked):
        one.acked(lease.queue, [lease], [moved])
    return moved


async def tell_acked_and_reserved(observers: Observers, lease: Lease, reserved: Reserved) -> Reserved:
    await tell_acked(observers, lease, Moved(Event.ACKED, lease.id, lease.born, lease.attempt))
    return await tell_reserved(observers, lease.queue, reserved)
