"""Every cell of the verb x place table, read from the table itself.

A cell is played with each way a job can be in its place: a waiting job is delayed or ready, an absent one never was
there, is finished or has expired. In all of them there is a lease that was good once, for the verbs that take one.
"""

from collections.abc import Awaitable, Callable

import pytest

from duetime.model.clock import ManualClock
from duetime.model.errors import DuetimeError
from duetime.model.job import TRANSITIONS, Event, IfExists, Lease, Moved
from duetime.stores.base import Store
from duetime.stores.finishes import Finish
from tests.contract.vocabulary import (
    QUEUE,
    ack_one,
    cancel_one,
    counts,
    get_one,
    give_back_one,
    given_dead,
    given_leased,
    push_one,
    reap,
    reschedule_one,
    value,
)

WAYS = {
    "waiting": ["delayed", "ready"],
    "leased": ["leased", "last try"],
    "dead": ["dead"],
    "absent": ["never", "finished", "expired"],
}
CELLS = [
    pytest.param(verb, way, outcome, id=f"{verb}-{way}")
    for verb, row in TRANSITIONS.items()
    for place, outcome in row.items()
    for way in WAYS[place]
]
TTR_MS = 60_000


async def put(store: Store, clock: ManualClock, way: str) -> Lease:
    """Bring the job "a" somewhere; answers a lease that is, or was, or might have been held on it."""
    if way == "never":
        return Lease(QUEUE, "a", clock.now_ms(), 1)
    if way == "dead":
        return await given_dead(store, "a")
    lease = await given_leased(store, "a", ttl="1h", tries=1 if way == "last try" else 5)
    match way:
        case "delayed":
            await store.release(lease, 600_000)
        case "ready":
            await store.release(lease, 0)
        case "finished":
            await ack_one(store, lease)
        case "expired":
            await store.release(lease, 0)
            clock.advance("2h")
        case _:
            assert way in ("leased", "last try")
    return lease


async def respawn(store: Store) -> Moved | None:
    moved = list(await store.respawn(QUEUE, ids=["a"]))
    return moved[0] if moved else None


async def finish_one(store: Store, lease: Lease) -> Moved | None:
    [answer] = await store.finish(QUEUE, [Finish(lease)])
    finished = value(answer)
    return finished.acked if finished else None


async def run_out(store: Store, clock: ManualClock) -> Moved:
    clock.advance("60s")
    [moved] = await reap(store)
    return moved


async def play(store: Store, clock: ManualClock, verb: str, lease: Lease) -> Moved | int | None:
    acts: dict[str, Callable[[], Awaitable[Moved | int | None]]] = {
        "push keep": lambda: push_one(store, "a", delay="5s"),
        "push replace": lambda: push_one(store, "a", delay="5s", if_exists=IfExists.REPLACE),
        "push error": lambda: push_one(store, "a", delay="5s", if_exists=IfExists.ERROR),
        "cancel": lambda: cancel_one(store, "a"),
        "reschedule": lambda: reschedule_one(store, "a", delay_ms=5000),
        "release": lambda: store.release(lease, 5000),
        "give_back": lambda: give_back_one(store, lease),
        "kill": lambda: store.kill(lease),
        "extend": lambda: store.extend(lease, TTR_MS),
        "ack": lambda: ack_one(store, lease),
        "finish": lambda: finish_one(store, lease),
        "respawn": lambda: respawn(store),
        "lease runs out": lambda: run_out(store, clock),
    }
    return await acts[verb]()


async def place_of(store: Store) -> str:
    job = await get_one(store, "a")
    if job is None:
        return "absent"
    return {"delayed": "waiting", "ready": "waiting"}.get(job.state.value, job.state.value)


def told(answer: Moved | int | None) -> str:
    match answer:
        case None:
            return "nothing"
        case int():
            return "the end of the lease"
        case _:
            assert answer.id == "a"
            return answer.event.value


LEFT_ALONE = "left alone"
OUTCOMES: dict[str, tuple[str, str]] = {
    "created": (Event.ACCEPTED, "waiting"),
    "kept": (Event.KEPT, LEFT_ALONE),
    "replaced": (Event.REPLACED, "waiting"),
    "removed": (Event.CANCELLED, "absent"),
    "moved": (Event.RESCHEDULED, "waiting"),
    "waits": (Event.GIVEN_BACK, "waiting"),
    "waits or dies": (Event.RELEASED, "waiting"),
    "dies": (Event.DEAD, "dead"),
    "leased": ("the end of the lease", "leased"),
    "not found": ("nothing", LEFT_ALONE),
    "gone": ("nothing", LEFT_ALONE),
}
"""What is told, and where the job is then. Every other outcome is an error's code, and the job is left alone."""
OWN_WORDS = {
    ("ack", "removed"): Event.ACKED,
    ("finish", "removed"): Event.ACKED,
    ("respawn", "waits"): Event.RESPAWNED,
    ("lease runs out", "waits or dies"): Event.LEASE_EXPIRED,
}


def expected(verb: str, way: str, outcome: str) -> tuple[str, str]:
    if outcome == "waits or dies" and way == "last try":
        return Event.DEAD, "dead"
    if outcome == "removed" and way == "dead":
        return Event.DELETED, "absent"
    word, after = OUTCOMES.get(outcome, (outcome, LEFT_ALONE))
    return OWN_WORDS.get((verb, outcome), word), after


@pytest.mark.parametrize(("verb", "way", "outcome"), CELLS)
async def test_every_cell(store: Store, clock: ManualClock, verb: str, way: str, outcome: str) -> None:
    lease = await put(store, clock, way)
    place = await place_of(store)
    assert place == next(place for place, ways in WAYS.items() if way in ways)
    before = await get_one(store, "a")

    job_id = "a"
    try:
        what = told(await play(store, clock, verb, lease))
    except DuetimeError as refused:
        what, job_id = refused.code, refused.fields["id"]

    word, after = expected(verb, way, outcome)
    assert (what, job_id) == (word, "a")
    if after == LEFT_ALONE:
        assert await get_one(store, "a") == before
        after = place
    assert await place_of(store) == after
    counted = await counts(store)
    there = {"waiting": counted.delayed + counted.ready, "leased": counted.leased, "dead": counted.dead}
    assert there == {place: int(place == after) for place in there}
