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
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from duetime.model.clock import ManualClock
from duetime.model.errors import DuetimeError
from duetime.model.job import Counts, IfExists, Lease, NewJob, Priority, State
from duetime.model.names import Queue
from duetime.stores.base import Ask, GiveBack, Mark, Push, Reaped, Reserved, RulesChange, Store
from duetime.stores.finishes import Finish, Join
from duetime.stores.open import open_store
from tests.contract.vocabulary import OTHER, QUEUE, as_lists, walk

EXAMPLES = {"memory": 20, "sqlite": 70, "redis": 40, "postgres": 8, "mysql": 8}
"""Sequences at scale 1: seconds on each store. Servers prove themselves sound over the wire, which is slower.
The memory store is the reference itself: it is only compared with another of its kind.
"""
STEPS = 40

IDS = ["a", "b", "c", "é:'%"]

queues = st.sampled_from([QUEUE, QUEUE, QUEUE, OTHER])
ids = st.sampled_from(IDS)
some_ids = st.lists(ids, min_size=1, max_size=3)
# Few durations, the same for all, so that their ends often fall together.
delays = st.sampled_from([0, 0, 0, 1, 10, 1000])
ttls = st.sampled_from([0, 1, 10, 1000])
ttrs = st.sampled_from([10, 1000, 1])
tries = st.sampled_from([5, 1, 2, 0])
errors = st.sampled_from(["", "it failed", "é\n" * 10])
offsets = st.sampled_from([None, None, None, None, -1000, -1, 0, 1, 10])
"""Of an instant, from the clock's now; None leaves the delay to decide."""
bodies = st.sampled_from([b"x", b"", b"\0\xff\n", b"123456"])
attributes = st.sampled_from([{}, {"trace": "1"}, {"é": "", "b": "\n"}])
limits = st.sampled_from([1, 2, 4, 9, 0])
quotas = st.sampled_from([(0, 0, 0), (0, 0, 2), (0, 1, 1), (1, 1, 1), (5, 3, 2)])
marks = st.none() | st.builds(
    Mark,
    name=st.sampled_from(["one", "two"]),
    digest=st.sampled_from([b"x", b"x", b"\0y"]),
    life_ms=st.sampled_from([100_000, 10, 1]),
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
    born=st.sampled_from([0, 0, 0, 0, 0, -1000, -1]),
    attempt=st.sampled_from([0, 1, 3]),
)
"""With `due_at` and `born` as offsets."""
requests = st.builds(
    Push,
    jobs=st.lists(new_jobs, min_size=1, max_size=3),
    if_exists=st.sampled_from([IfExists.KEEP, IfExists.REPLACE, IfExists.ERROR]),
    mark=marks,
)
asks = st.builds(Ask, limit=limits, ttr_ms=ttrs, quotas=quotas)
flags = st.sampled_from([msgspec.UNSET, False, True])
caps = st.sampled_from([msgspec.UNSET, 0, 3, 2])
rules_changes = st.builds(
    RulesChange,
    paused=st.sampled_from([msgspec.UNSET, False, False, False, True]),
    strict=flags,
    expired_to_dead=flags,
    max_jobs=caps,
    max_body=caps,
    kept=flags,
)
states = st.lists(st.sampled_from(State), unique=True, min_size=1, max_size=2) | st.just(list(State))
steps = st.sampled_from([1, 10, 1, 9, 990, 1000, -1, -10])
choices = st.integers(0, 11)
versions = st.sampled_from(["any", "none", "present", "stale"])


def plain(answer: Any) -> Any:
    """An answer as it is compared: errors by their code, sequences as lists."""
    if isinstance(answer, DuetimeError):
        return f"error: {answer.code}"
    if isinstance(answer, list | tuple) and not isinstance(answer, Queue):
        return [plain(each) for each in answer]
    return as_lists(answer)


class Comparison(RuleBasedStateMachine):
    """A store and the reference, on one clock."""

    def __init__(self, empty_store_url: Callable[[], str]) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = ManualClock()
        self.latest = self.clock.now_ms()
        self.ends: list[int] = []
        self.reference = self.run(open_store("memory:", clock=self.clock))
        self.subject = self.run(open_store(empty_store_url(), clock=self.clock))

    def run(self, awaitable: Awaitable[Any]) -> Any:
        # Not the runner's own run(), which looks after signals each time: a third of the whole test.
        return self.runner.get_loop().run_until_complete(awaitable)

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

    @rule(step=steps)
    def time_passes(self, step: int) -> None:
        """Forward, or back: but not so far that a mark or counter that has ended would live again.

        A store may forget what has ended, and none must.
        """
        now = self.clock.now_ms() + step
        if not any(now < end <= self.latest for end in self.ends):
            self.clock.set(now)
            self.latest = max(self.latest, now)

    def will_end(self, life_ms: int) -> None:
        self.ends.append(self.clock.now_ms() + life_ms)


def while_there_are(what: str) -> Callable[[Any], Any]:
    """A rule that is only worth a step while jobs are there for it."""
    return precondition(lambda machine: any(getattr(counted, what) for counted in machine.counted))


class Jobs(Comparison):
    def __init__(self, empty_store_url: Callable[[], str]) -> None:
        super().__init__(empty_store_url)
        self.leases: list[Lease] = []
        self.counted: Sequence[Counts] = []

    # --- the hot path

    def at(self, offset: int | None) -> int | None:
        return None if offset is None else self.clock.now_ms() + offset

    def timed(self, job: NewJob, if_exists: IfExists = IfExists.KEEP) -> NewJob:
        """With instants for offsets; a job that replaces another one is never put back under an old born."""
        known = job.born and if_exists is not IfExists.REPLACE
        return msgspec.structs.replace(
            job,
            due_at=self.at(job.due_at),
            born=self.clock.now_ms() + job.born if known else 0,
            attempt=job.attempt if known else 0,
        )

    @rule(queue=queues, requests=st.lists(requests, min_size=1, max_size=3))
    def push(self, queue: Queue, requests: Sequence[Push]) -> None:
        timed = [
            msgspec.structs.replace(request, jobs=[self.timed(job, request.if_exists) for job in request.jobs])
            for request in requests
        ]
        for request in requests:
            if request.mark:
                self.will_end(request.mark.life_ms)
        self.both(lambda store: store.push(queue, timed))

    @while_there_are("ready")
    @rule(queue=queues, asks=st.lists(asks, min_size=1, max_size=3))
    def reserve(self, queue: Queue, asks: Sequence[Ask]) -> None:
        reserved: Reserved = self.both(lambda store: store.reserve(queue, asks))
        self.leases += [delivery.lease for deliveries in reserved.deliveries for delivery in deliveries]

    @rule(queue=queues, jobs=st.lists(new_jobs, min_size=1, max_size=4), limit=st.sampled_from([9, 1, 2]), ask=asks)
    def push_and_reserve(self, queue: Queue, jobs: Sequence[NewJob], limit: int, ask: Ask) -> None:
        """What is most likely to bring jobs into consumers' hands, and to leave some behind."""
        self.push(queue, [Push([msgspec.structs.replace(job, due_at=None, delay_ms=0)]) for job in jobs])
        self.reserve(queue, [msgspec.structs.replace(ask, limit=limit)])

    def lease(self, choice: int) -> Lease:
        """Mostly one that is held, now and then one that was lost."""
        held = [
            Lease(queue, job.id, job.born, job.attempt)
            for queue in (QUEUE, OTHER)
            for job in self.run(walk(self.reference, State.LEASED, queue))
        ]
        among = held if held and choice < 9 else self.leases
        return among[choice % len(among)]

    @while_there_are("leased")
    @rule(choices=st.lists(choices, min_size=1, max_size=3))
    def ack(self, choices: Sequence[int]) -> None:
        leases = [self.lease(choice) for choice in choices]
        queue = leases[0].queue
        self.both(lambda store: store.ack(queue, [lease for lease in leases if lease.queue == queue]))

    @while_there_are("leased")
    @rule(
        choices=st.lists(choices, min_size=1, max_size=3),
        then=st.lists(st.lists(new_jobs, max_size=3, unique_by=lambda job: job.id), min_size=3, max_size=3),
        result=st.none() | bodies,
        life=st.sampled_from([0, 1, 10, 1000]),
        of=st.sampled_from([0, 0, 1, 2, 3]),
    )
    def finish(
        self, choices: Sequence[int], then: Sequence[Sequence[NewJob]], result: bytes | None, life: int, of: int
    ) -> None:
        leases = [self.lease(choice) for choice in choices]
        queue = leases[0].queue
        finishes = [
            Finish(lease, [msgspec.structs.replace(self.timed(job), born=0, attempt=0) for job in jobs], result, life)
            for lease, jobs in zip(leases, then, strict=False)
            if lease.queue == queue
        ]
        self.will_end(life)
        if of and life:
            finishes = [
                msgspec.structs.replace(one, then=[], join=Join(f"of {of}", of, one.then, life)) for one in finishes
            ]
        self.both(lambda store: store.finish(queue, finishes))

    @while_there_are("leased")
    @rule(choice=choices, delay=delays, error=errors)
    def release(self, choice: int, delay: int, error: str) -> None:
        lease = self.lease(choice)
        self.both(lambda store: store.release(lease, delay, error))

    @while_there_are("leased")
    @rule(asked=st.lists(st.tuples(choices, st.none() | delays), min_size=1, max_size=3))
    def give_back(self, asked: Sequence[tuple[int, int | None]]) -> None:
        give_backs = [GiveBack(self.lease(choice), delay) for choice, delay in asked]
        queue = give_backs[0].lease.queue
        self.both(lambda store: store.give_back(queue, [one for one in give_backs if one.lease.queue == queue]))

    @while_there_are("leased")
    @rule(choice=choices, error=errors)
    def kill(self, choice: int, error: str) -> None:
        lease = self.lease(choice)
        self.both(lambda store: store.kill(lease, error))

    @while_there_are("leased")
    @rule(choice=choices, ttr=ttrs)
    def extend(self, choice: int, ttr: int) -> None:
        lease = self.lease(choice)
        self.both(lambda store: store.extend(lease, ttr))

    @while_there_are("total")
    @rule(queue=queues, ids=some_ids, finished=st.booleans())
    def cancel(self, queue: Queue, ids: Sequence[str], finished: bool) -> None:
        self.both(lambda store: store.cancel(queue, ids, finished=finished))

    @while_there_are("total")
    @rule(queue=queues, ids=some_ids, delay=delays, offset=offsets)
    def reschedule(self, queue: Queue, ids: Sequence[str], delay: int, offset: int | None) -> None:
        due_at = self.at(offset)
        self.both(lambda store: store.reschedule(queue, ids, delay_ms=delay, due_at=due_at))

    @while_there_are("total")
    @rule(step=st.sampled_from([0, 1, 10, 1000]))
    def reap(self, step: int) -> None:
        self.time_passes(step)
        expected: Reaped = self.run(self.reference.reap())
        got: Reaped = self.run(self.subject.reap())
        assert (plain(got.moved), got.now) == (plain(expected.moved), expected.now)
        if expected.next_at is not None:
            assert got.next_at is not None
            assert got.next_at <= expected.next_at
        assert got.next_at is None or got.next_at > got.now, "a reaper that has nothing to do must be able to sleep"

    # --- administering

    @while_there_are("dead")
    @rule(queue=queues, ids=st.none() | some_ids, limit=limits, ttl=ttls, tries=st.none() | tries)
    def respawn(self, queue: Queue, ids: Sequence[str] | None, limit: int, ttl: int, tries: int | None) -> None:
        self.both(lambda store: store.respawn(queue, ids=ids, limit=limit, ttl_ms=ttl, tries=tries))

    @while_there_are("total")
    @rule(step=st.sampled_from([0, 1, -10]), queue=queues, states=states, limit=st.none() | limits)
    def purge(self, step: int, queue: Queue, states: Sequence[State], limit: int | None) -> None:
        self.time_passes(step)
        self.both(lambda store: store.purge(queue, states, limit=limit))

    @rule(queue=queues, change=rules_changes)
    def configure(self, queue: Queue, change: RulesChange) -> None:
        self.both(lambda store: store.configure(queue, change))

    # --- looking

    @while_there_are("total")
    @rule(queue=queues, limit=st.integers(1, 4), edges=st.lists(st.integers(-5, 15), max_size=4, unique=True))
    def look(self, queue: Queue, limit: int, edges: Sequence[int]) -> None:
        at = [self.clock.now_ms() + edge for edge in sorted(edges)]
        self.both(lambda store: store.due_histogram(queue, at))
        for state in State:
            self.both(lambda store, state=state: walk(store, state, queue, limit=limit))

    @invariant()
    def both_are_alike_and_sound(self) -> None:
        self.counted = self.both(picture)[0]
        assert list(self.run(self.reference.check())) == []
        assert list(self.run(self.subject.check())) == []


async def picture(store: Store) -> list[Any]:
    """All that can be seen at a glance."""
    both = [QUEUE, OTHER]
    jobs = [await store.get(queue, IDS) for queue in both]
    rules = [await store.configure(queue) for queue in both] + [await store.results(queue, IDS) for queue in both]
    counted = [await store.counts(both), await store.totals(both)]
    return [*counted, await store.heads(both), await store.queues(), jobs, rules]


class Records(Comparison):
    @rule(key=ids, value=st.none() | bodies, version=versions, since=st.integers(0, 6))
    def write_record(self, key: str, value: bytes | None, version: str, since: int) -> None:
        """Put a value, or delete where there is none to put; then follow the changes."""
        record = self.run(self.reference.registry.get("kind", key))
        present = record.version if record else 0
        wanted = {"any": None, "none": 0, "present": present, "stale": max(present - 1, 0)}[version]
        if value is None:
            self.both(lambda store: store.registry.delete("kind", key, if_version=wanted))
        else:
            self.both(lambda store: store.registry.put("kind", key, value, if_version=wanted))
        self.both(lambda store: store.registry.get("kind", key))
        self.both(lambda store: store.registry.list_records("kind"))
        self.both(lambda store: store.registry.changes(since))

    @rule(name=ids, by=st.integers(-2, 3), life=st.sampled_from([0, 1, 10, 1000]))
    def count(self, name: str, by: int, life: int) -> None:
        self.will_end(life)
        self.both(lambda store: store.registry.increment(name, by, life_ms=life))
        self.both(lambda store: store.registry.counters(name[0]))


def run(machine: type[Comparison], empty_store_url: Callable[[], str], examples: int) -> None:
    run_state_machine_as_test(
        lambda: machine(empty_store_url),
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.timeout(0)
def test_random_sequences_on_jobs(store_kind: str, empty_store_url: Callable[[], str], scale: int) -> None:
    run(Jobs, empty_store_url, EXAMPLES[store_kind] * scale)


@pytest.mark.timeout(0)
def test_random_sequences_on_the_registry(store_kind: str, empty_store_url: Callable[[], str], scale: int) -> None:
    run(Records, empty_store_url, EXAMPLES[store_kind] * scale // 4)
