"""Two relays that hold the same batch of another system while the queue here is full."""

from collections.abc import Sequence

import pytest

from duetime.bridges import laravel_database, redis_scripts
from duetime.bridges.foreign import ForeignQueues, HeldBatch
from duetime.bridges.relay import Relay
from duetime.client import Client, calls
from duetime.client.call import Call
from duetime.model.errors import QueueFull
from duetime.model.job import IfExists, NewJob
from duetime.model.names import Queue
from duetime.stores.base import Mark, Pushed, RulesChange


def push_while_full(foreign: ForeignQueues, other: ForeignQueues, theirs: str, client: Client) -> None:
    """The queue is full for the first relay's push, and has room again for that of the second one, which has held the
    same batch meanwhile. Each job is pushed and finished once. Both sides are empty at the end.
    """
    ours, held = client.queue("moved"), list[HeldBatch | None]()

    def push(queue: Queue, jobs: Sequence[NewJob], if_exists: IfExists, mark: Mark | None) -> Call[Pushed]:
        held.append(other.hold(theirs, 250))
        return calls.push(queue, jobs, if_exists, mark)

    ours.push(b"fills the queue", id="full")
    ours.configure(RulesChange(max_jobs=1))
    with pytest.raises(QueueFull):
        Relay(foreign, client, push=push).to_duetime(theirs, Queue("default", "moved"), follow=False)
    ours.configure(RulesChange(max_jobs=0))
    assert held[0]
    waiting, hold = len(held[0].jobs), other.hold

    def hold_again(queue: str, limit: int, size: int = 0) -> HeldBatch | None:
        return held.pop(0) if held else hold(queue, limit)

    def finish(_: int) -> None:
        while job := ours.pop():
            job.ack()

    other.hold = hold_again  # type: ignore[method-assign]
    Relay(other, client, report=finish).to_duetime(theirs, Queue("default", "moved"), follow=False)
    Relay(foreign, client, report=finish).to_duetime(theirs, Queue("default", "moved"), follow=False)
    assert ours.totals().running.accepted == waiting + 1
    assert foreign.sizes(theirs).total == 0


def close_and_give_back(foreign: ForeignQueues, theirs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that two relays had is left alone for a while after it was refused, and then given back."""
    first, second = foreign.hold(theirs, 250), foreign.hold(theirs, 250)
    assert first
    assert second
    assert first.name == second.name
    everything = range(len(first.jobs))
    foreign.forget(theirs, first, everything, if_unshared=True)
    assert foreign.hold(theirs, 250) is None
    assert foreign.sizes(theirs).held == len(first.jobs)
    for module in (redis_scripts, laravel_database):
        monkeypatch.setattr(module, "CLOSED_MS", 0)
    again = foreign.hold(theirs, 250)
    assert again == first
    foreign.forget(theirs, first, everything, if_unshared=True)
    assert foreign.sizes(theirs).held == 0
    assert foreign.sizes(theirs).total == len(first.jobs)
