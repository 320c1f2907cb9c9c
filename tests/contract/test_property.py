"""Random sequences of verbs on each store, compared with the memory store answer by answer.

Two queues, a few ids, times of a few milliseconds: small enough that jobs meet every verb in every state. After each
step both stores must count the same, show the same jobs and be sound. A failure prints the steps that lead to it, and a
`@reproduce_failure` line that replays them. DUETIME_TEST_SCALE multiplies the number of sequences.

What the contract leaves open is not compared: the text of errors and cursors, and `next_at` of a reaper, which is a
lower bound.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from duetime.clock import ManualClock
from duetime.errors import DuetimeError
from duetime.job import Delivery, IfExists, Lease, NewJob, Priority, State
from duetime.names import Queue
from duetime.stores.base import Ask, Mark, Push, Reaped, Reserved, RulesChange, Store
from duetime.stores.open import open_store
from tests.contract.vocabulary import OTHER, QUEUE, as_lists, walk

EXAMPLES = 40
"""Sequences at scale 1: about ten seconds on a store."""
STEPS = 40

IDS = ["a", "b", "c", "é:'%"]

queues = st.sampled_from([QUEUE, QUEUE, OTHER])
ids = st.sampled_from(IDS)
some_ids = st.lists(ids, min_size=1, max_size=4)
delays = st.sampled_from([0, 0, 1, 2, 10, 1000])
ttls = st.sampled_from([0, 0, 1, 2, 10, 1000])
ttrs = st.sampled_from([1, 2, 10, 1000])
tries = st.sampled_from([0, 1, 1, 2, 5])
errors = st.sampled_from(["", "", "it failed", "é\n" * 10])
offsets = st.sampled_from([None, None, None, -1000, -1, 0, 1, 5])
"""Of an instant, from the clock's now; None leaves the delay to decide."""
bodies = st.sampled_from([b"", b"x", b"\0\xff\n", b"123456"])
attributes = st.sampled_from([{}, {}, {"trace": "1"}, {"é": "", "b": "\n"}])
limits = st.integers(0, 4)
quotas = st.sampled_from([(0, 0, 0), (1, 0, 0), (0, 1, 1), (0, 0, 2), (5, 3, 2), (1, 1, 1)])
marks = st.none() | st.builds(
    Mark,
    name=st.sampled_from(["one", "two"]),
    digest=st.sampled_from([b"x", b"x", b"\0y"]),
    life_ms=st.sampled_from([1, 10, 100_000]),
)
new_jobs = st.builds(
    NewJob,
    id=ids,
    body=bodies,
    delay_ms=delays,
    due_at=offsets,
    ttl_ms=ttls,
    tries=tries,
    priority=st.sampled_from(Priority),
    attributes=attributes,
)
requests = st.builds(
    Push, jobs=st.lists(new_jobs, min_size=1, max_size=3), if_exists=st.sampled_from(IfExists), mark=marks
)
asks = st.lists(st.builds(Ask, limit=limits, ttr_ms=ttrs, quotas=quotas), min_size=1, max_size=3)
flags = st.sampled_from([msgspec.UNSET, msgspec.UNSET, True, False])
caps = st.sampled_from([msgspec.UNSET, msgspec.UNSET, 0, 0, 2, 3])
changes = st.builds(
    RulesChange,
    paused=flags,
    strict=flags,
    expired_to_dead=flags,
    max_jobs=caps,
    max_body=st.just(msgspec.UNSET) | caps,
)
states = st.lists(st.sampled_from(State), unique=True, max_size=4)
steps = st.sampled_from([1, 1, 1, 2, 2, 5, 10, 100, 1000, 1001, -1, -10])


def plain(answer: Any) -> Any:
    """An answer as it is compared: errors by their code, sequences as lists."""
    if isinstance(answer, DuetimeError):
        return f"error: {answer.code}"
    if isinstance(answer, list | tuple) and not isinstance(answer, Queue):
        return [plain(each) for each in answer]
    return as_lists(answer)


class Comparison(RuleBasedStateMachine):
    leases = Bundle("leases")

    def __init__(self, empty_store_url: Callable[[], str]) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = ManualClock()
        self.reference = self.run(open_store("memory:", clock=self.clock))
        self.subject = self.run(open_store(empty_store_url(), clock=self.clock))

    def run(self, awaitable: Awaitable[Any]) -> Any:
        async def waited() -> Any:
            return await awaitable

        return self.runner.run(waited())

    def answer(self, call: Callable[[Store], Awaitable[Any]], store: Store) -> Any:
        try:
            return self.run(call(store))
        except DuetimeError as refused:
            return refused

    def both(self, call: Callable[[Store], Awaitable[Any]]) -> Any:
        """Ask both stores, compare, and answer what the reference said."""
        expected = self.answer(call, self.reference)
        assert plain(self.answer(call, self.subject)) == plain(expected)
        return expected

    def teardown(self) -> None:
        self.run(self.subject.close())
        self.run(self.reference.close())
        self.runner.close()

    # --- time

    @rule(step=steps)
    def time_passes(self, step: int) -> None:
        self.clock.set(self.clock.now_ms() + step)

    # --- the hot path

    def at(self, offset: int | None) -> int | None:
        return None if offset is None else self.clock.now_ms() + offset

    def timed(self, request: Push) -> Push:
        jobs = [msgspec.structs.replace(job, due_at=self.at(job.due_at)) for job in request.jobs]
        return msgspec.structs.replace(request, jobs=jobs)

    @rule(queue=queues, requests=st.lists(requests, min_size=1, max_size=3))
    def push(self, queue: Queue, requests: Sequence[Push]) -> None:
        timed = [self.timed(request) for request in requests]
        self.both(lambda store: store.push(queue, timed))

    @rule(queue=queues, job=new_jobs, born=st.sampled_from([-1000, -1, 0]), attempt=st.integers(0, 3))
    def put_back(self, queue: Queue, job: NewJob, born: int, attempt: int) -> None:
        known = msgspec.structs.replace(
            job, due_at=self.at(job.due_at), born=self.clock.now_ms() + born, attempt=attempt
        )
        self.both(lambda store: store.push(queue, [Push([known])]))

    @rule(target=leases, queue=queues, asks=asks)
    def reserve(self, queue: Queue, asks: Sequence[Ask]) -> MultipleResults[Lease]:
        reserved: Reserved = self.both(lambda store: store.reserve(queue, asks))
        given: list[Delivery] = [delivery for deliveries in reserved.deliveries for delivery in deliveries]
        return multiple(*[delivery.lease for delivery in given])

    @rule(leases=st.lists(leases, min_size=1, max_size=3))
    def ack(self, leases: Sequence[Lease]) -> None:
        queue = leases[0].queue
        self.both(lambda store: store.ack(queue, [lease for lease in leases if lease.queue == queue]))

    @rule(lease=leases, delay=delays, error=errors)
    def release(self, lease: Lease, delay: int, error: str) -> None:
        self.both(lambda store: store.release(lease, delay, error))

    @rule(lease=leases)
    def give_back(self, lease: Lease) -> None:
        self.both(lambda store: store.give_back(lease))

    @rule(lease=leases, error=errors)
    def kill(self, lease: Lease, error: str) -> None:
        self.both(lambda store: store.kill(lease, error))

    @rule(lease=leases, ttr=ttrs)
    def extend(self, lease: Lease, ttr: int) -> None:
        self.both(lambda store: store.extend(lease, ttr))

    @rule(queue=queues, ids=some_ids)
    def cancel(self, queue: Queue, ids: Sequence[str]) -> None:
        self.both(lambda store: store.cancel(queue, ids))

    @rule(queue=queues, ids=some_ids, delay=delays, offset=offsets)
    def reschedule(self, queue: Queue, ids: Sequence[str], delay: int, offset: int | None) -> None:
        due_at = self.at(offset)
        self.both(lambda store: store.reschedule(queue, ids, delay_ms=delay, due_at=due_at))

    @rule()
    def reap(self) -> None:
        expected: Reaped = self.run(self.reference.reap())
        got: Reaped = self.run(self.subject.reap())
        assert (plain(got.moved), got.now) == (plain(expected.moved), expected.now)
        if expected.next_at is not None:
            assert got.next_at is not None
            assert got.next_at <= expected.next_at
        assert got.next_at is None or got.next_at > got.now, "a reaper that has nothing to do must be able to sleep"

    # --- administering

    @rule(queue=queues, ids=st.none() | some_ids, limit=limits, ttl=ttls, tries=st.none() | tries)
    def respawn(self, queue: Queue, ids: Sequence[str] | None, limit: int, ttl: int, tries: int | None) -> None:
        self.both(lambda store: store.respawn(queue, ids=ids, limit=limit, ttl_ms=ttl, tries=tries))

    @rule(queue=queues, states=states, limit=st.none() | limits)
    def purge(self, queue: Queue, states: Sequence[State], limit: int | None) -> None:
        self.both(lambda store: store.purge(queue, states, limit=limit))

    @rule(queue=queues)
    def purge_everything(self, queue: Queue) -> None:
        self.both(lambda store: store.purge(queue, list(State)))

    @rule(queue=queues, change=changes)
    def configure(self, queue: Queue, change: RulesChange) -> None:
        self.both(lambda store: store.configure(queue, change))

    # --- the registry

    def known_version(self, choice: str, key: str) -> int | None:
        record = self.run(self.reference.registry.get("kind", key))
        present = record.version if record else 0
        return {"any": None, "none": 0, "present": present, "stale": max(present - 1, 0)}[choice]

    @rule(key=ids, value=bodies, choice=st.sampled_from(["any", "none", "present", "stale"]))
    def put_record(self, key: str, value: bytes, choice: str) -> None:
        version = self.known_version(choice, key)
        self.both(lambda store: store.registry.put("kind", key, value, if_version=version))

    @rule(key=ids, choice=st.sampled_from(["any", "none", "present", "stale"]))
    def delete_record(self, key: str, choice: str) -> None:
        version = self.known_version(choice, key)
        self.both(lambda store: store.registry.delete("kind", key, if_version=version))

    @rule(since=st.integers(0, 6))
    def read_registry(self, since: int) -> None:
        self.both(lambda store: store.registry.changes(since))
        self.both(lambda store: store.registry.list_records("kind"))

    @rule(name=ids, by=st.integers(-2, 3), life=st.sampled_from([0, 1, 10, 1000]))
    def count(self, name: str, by: int, life: int) -> None:
        self.both(lambda store: store.registry.increment(name, by, life_ms=life))
        self.both(lambda store: store.registry.counters(name[0]))

    # --- looking

    @rule(queue=queues, limit=st.integers(1, 4))
    def page_through(self, queue: Queue, limit: int) -> None:
        for state in State:
            self.both(lambda store, state=state: walk(store, state, queue, limit=limit))

    @rule(queue=queues, edges=st.lists(st.integers(-5, 15), min_size=1, max_size=4, unique=True))
    def look_ahead(self, queue: Queue, edges: Sequence[int]) -> None:
        at = [self.clock.now_ms() + edge for edge in sorted(edges)]
        self.both(lambda store: store.due_histogram(queue, at))

    @invariant()
    def the_same_jobs_are_there(self) -> None:
        both = [QUEUE, OTHER]
        self.both(lambda store: store.counts(both))
        self.both(lambda store: store.heads(both))
        self.both(lambda store: store.queues())
        for queue in both:
            self.both(lambda store, queue=queue: store.get(queue, IDS))
            self.both(lambda store, queue=queue: store.configure(queue))

    @invariant()
    def both_are_sound(self) -> None:
        assert list(self.run(self.reference.check())) == []
        assert list(self.run(self.subject.check())) == []


@pytest.mark.timeout(0)
def test_random_sequences(empty_store_url: Callable[[], str], scale: int) -> None:
    run_state_machine_as_test(
        lambda: Comparison(empty_store_url),
        settings=settings(
            max_examples=EXAMPLES * scale,
            stateful_step_count=STEPS,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
