"""One seed, one world: engines on a ledger, producers and consumers that do what chance tells them, and faults.

`live(seed)` runs it in virtual time with callbacks in an order drawn by chance and returns what was wrong.

Every second seed is calm: nothing fails, there is no safety net, and a job may not lie ready beside a consumer that
waits for it, nor a lease outlive its end, by more than a moment. In the others connections break, answers get lost,
clocks jump and engines come and go; when that is over, everything must still come to an end.

Three in four of each kind are lonely, so that a wake that is lost is not made good by the next: few consumers that wait
long, few jobs, and in calm all of them in rounds, within the time that a call takes. The others are crowded; and half
of those are thronged: dozens of consumers, each on several of five queues, and no store answers at once.

In half of them stores have single-job calls, engines write a journal that takes its time, consumers hold their leases
in `HeldLeases`, and the store is a group of two, of which one can be out of reach; whatever else they are.

When all jobs have come to their end, everybody rests: consumers that wait cause no call for jobs.
"""

import asyncio
import logging
import random
from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar

from duetime.consumer.held_leases import HeldLeases
from duetime.duties import run_duty
from duetime.engine import Engine, batcher, reaper, waiters
from duetime.engine import engine as engine_module
from duetime.model.errors import JobExists, LeaseLost, StoreUnavailable
from duetime.model.job import Delivery, IfExists, Lease, Moved, NewJob, Priority
from duetime.model.names import Queue
from duetime.stores.base import RulesChange, Store
from duetime.stores.group.store import GroupStore
from duetime.stores.memory.queue import MemoryQueue
from duetime.stores.registry import set_drain
from tests.simulation.ledger import LEASED, WAITING, Books, Ledger, Notebook, Wire, WireOneJob
from tests.simulation.virtual_loop import LoopClock, run_virtual

QUEUES = [Queue("shop", name) for name in ("mail", "sms", "fax", "post", "call")]
OWN_IDS = [f"own{number}" for number in range(6)]
FEW_QUEUES = QUEUES[:2]
BUSY_S = {"calm and lonely": 12.0, "broken and lonely": 4.0, "calm and thronged": 1.0, "broken and thronged": 1.5}
BUSY_IN_A_CROWD_S = 2.0
"""How long producers produce and things break."""
DRAINING_S = 6.0
"""Added where a member may drain: all engines have followed after 3.5 s."""
REST_S = 3.0
"""How long nothing may be asked at the end."""
DRAIN_S = 60.0
"""How long everything may take to come to its end after that."""
LIFE_S = 600.0
"""A world that lasts longer waits for an answer that never comes."""
HELD_MS = 1000
"""For how long `HeldLeases` renews a lease each time."""
MOMENT_MS = 800
"""Longer than any few calls take."""
RECOVERY_MS = 3500
"""Longer than the longest pause of a duty that backs off, and the safety net's second after it."""

NEVER = 1 << 62

T = TypeVar("T")


class World:
    def __init__(self, seed: int) -> None:
        self.calm = seed % 2 == 0
        self.lonely = seed % 8 < 6
        self.thronged = seed % 16 > 13
        self.single_jobs, self.journals, self.holds, self.grouped = ((seed // 16) & bit > 0 for bit in (1, 2, 4, 8))
        self.moment_ms = MOMENT_MS * (1 + self.grouped)  # a group asks its members one after the other
        self.queues = QUEUES if self.thronged else FEW_QUEUES
        self.chance = random.Random(seed)
        self.clock = LoopClock()
        self.books = Books()
        self.ledgers = [Ledger(self.clock, self.books) for _ in range(1 + self.grouped)]
        self.engines: list[Engine] = []
        self.wires: list[Wire] = []
        self.notebooks: list[Notebook] = []
        self.parked: dict[asyncio.Task[Any], tuple[int, list[Queue]]] = {}
        self.received: set[Lease] = set()
        self.held: dict[tuple[Queue, str, int], Delivery] = {}
        self.could_not_give_back = Lapses()
        self.holder: HeldLeases | None = None
        self.unanswered = 0
        self.sound_since = NEVER
        self.busy = True
        self.over = False
        self.looks = 0
        self._stops: list[asyncio.Event] = []

    # --- a life

    async def live(self) -> list[str]:
        chance = self.chance
        async with asyncio.TaskGroup() as group:
            for _ in range(chance.choice([1, 2])):
                await self.start_engine(group)
            renewing = self.start_renewing(group) if self.holds else None
            trouble = [group.create_task(actor) for actor in self.troubles(group)]
            crowd = 2 if self.lonely else chance.randint(16, 40) if self.thronged else chance.randint(3, 7)
            consumers = [group.create_task(self.consume()) for _ in range(crowd)]
            watching = group.create_task(self.watch())
            longer_s = DRAINING_S if self.grouped and not self.calm and not self.thronged else 0.0
            await asyncio.sleep(BUSY_S.get(self.kind, BUSY_IN_A_CROWD_S) + longer_s)
            self.busy = False
            await asyncio.wait(trouble)
            await self.calm_down()
            await self.drain()
            await self.rest()
            self.over = True
            for task in self.parked:
                task.cancel()
            await asyncio.wait(consumers)
            watching.cancel()
            if renewing:
                renewing.cancel()
            for stop in self._stops:
                stop.set()
        await self.judge()
        return self.books.complaints

    def troubles(self, group: asyncio.TaskGroup) -> list[Coroutine[Any, Any, None]]:
        if self.calm and self.lonely:
            return [self.play()]
        troubles = [self.produce(0), self.produce(1), self.administer()]
        return troubles if self.calm else [*troubles, self.harm(group)]

    @property
    def kind(self) -> str:
        many = "lonely" if self.lonely else "thronged" if self.thronged else "crowded"
        return f"{'calm' if self.calm else 'broken'} and {many}"

    def complain(self, what: str, *about: object) -> None:
        self.books.complaints.append(f"{self.clock.now_ms()}: {what}: {about}")

    async def start_engine(self, group: asyncio.TaskGroup) -> None:
        wires = [Wire(ledger, self.interrupt) for ledger in self.ledgers]
        stop, started = asyncio.Event(), asyncio.Event()
        if self.single_jobs:
            for wire in wires:
                wire.one_job = WireOneJob(wire, declines=lambda: self.chance.random() < 0.2)
        notebooks = [self.new_notebook()] if self.journals else []
        self.notebooks += notebooks

        async def run() -> None:
            store = await self.open_group(wires) if self.grouped else wires[0]
            async with Engine(store, chance=self.chance.random, recorders=notebooks) as engine:
                self.engines.append(engine)
                started.set()
                await stop.wait()
                self.engines.remove(engine)
            await store.close()

        self.wires += wires
        self._stops.append(stop)
        for wire in wires:
            self.lag(wire)
        group.create_task(run())
        await started.wait()

    async def open_group(self, wires: list[Wire]) -> GroupStore:
        async def reach(wire: Wire) -> Store:
            return wire

        return await GroupStore.open(
            "pair", {name: partial(reach, wire) for name, wire in zip("ab", wires, strict=True)}
        )

    def new_notebook(self) -> Notebook:
        longest, fails = self.chance.choice([0.0, 0.005, 0.1]), 0.0 if self.calm else 0.05
        return Notebook(
            flush_s=lambda: self.chance.random() * longest,
            fails=lambda: self.busy and self.chance.random() < fails,
        )

    def start_renewing(self, group: asyncio.TaskGroup) -> asyncio.Task[None]:
        now = asyncio.get_running_loop().time
        self.holder = HeldLeases(lambda: self.some_engine(self.chance), HELD_MS, group.create_task, now)
        return group.create_task(run_duty(self.holder))

    def lag(self, wire: Wire) -> None:
        """Some stores answer at once, some take their time, and some never announce anything."""
        longest = self.chance.choice([0.0, 0.01, 0.08] if self.lonely else [0.0, 0.002, 0.015])
        if self.thronged and self.chance.random() < 0.7:
            wire.slow(request=0.001 + longest)  # the same for all: calls that were sent together end together
        elif longest:
            wire.slow(request=lambda: self.chance.random() * longest, answer=lambda: self.chance.random() * longest)
        if not self.calm and self.chance.random() < 0.3:
            wire.silence_wakeups()

    async def calm_down(self) -> None:
        """Whatever was broken works again, and stays so."""
        for wire in self.wires:
            wire.heal()
            if self.thronged:
                self.lag(wire)
        self.sound_since = self.clock.now_ms()
        for ledger in self.ledgers:
            for queue in self.queues:
                await ledger.configure(queue, RulesChange(paused=False))

    async def rest(self) -> None:
        """Nothing is left to take: those who wait look no more, and whoever comes looks once at each queue."""
        await asyncio.sleep(1.5)  # calls under way end, and consumers that had something to do come back
        asked, came = self.asked(), self.looks
        await asyncio.sleep(REST_S)
        asked, came = self.asked() - asked, self.looks - came
        if asked > came * len(self.queues) * len(self.ledgers):
            self.complain("asks again and again for what is not there", asked, came)

    def asked(self) -> int:
        return sum(wire.count("reserve") for wire in self.wires)

    async def drain(self) -> None:
        """Consumers go on until nothing waits and nothing is leased."""
        until = self.clock.monotonic() + DRAIN_S
        while any(entry.place in (WAITING, LEASED) for entry in self.books.jobs.values()):
            if self.clock.monotonic() > until:
                stuck = {key: entry for key, entry in self.books.jobs.items() if entry.place in (WAITING, LEASED)}
                self.complain("still not done", stuck)
                return
            await asyncio.sleep(0.25)

    # --- actors

    async def patiently(self, call: Coroutine[Any, Any, T], chance: random.Random) -> T | None:
        """The answer, or None if it failed, or if the caller ran out of patience and was cancelled."""
        task = asyncio.create_task(call)
        if self.busy and not (self.calm and self.lonely) and chance.random() < 0.2:
            patience = chance.choice([0.0, 0.001, 0.01, 0.1, 1.0]) * chance.random()
            asyncio.get_running_loop().call_later(patience, task.cancel)
        return await self.outcome(task)

    async def outcome(self, task: "asyncio.Task[T]") -> T | None:
        await asyncio.wait([task])
        if task.cancelled():
            return None
        if isinstance(error := task.exception(), StoreUnavailable | LeaseLost | JobExists):
            if self.calm and isinstance(error, StoreUnavailable):
                self.complain("refused although nothing is broken", error)
            return None
        return task.result()

    async def produce(self, number: int) -> None:
        """Bursts: what arrives together shares calls."""
        chance = random.Random(self.chance.random())
        burst = 0
        while self.busy:
            await asyncio.sleep((1.0 if self.lonely else chance.choice([0.01, 0.2, 0.8])) * chance.random())
            burst += 1
            names = [f"p{number}-{burst}-{at}" for at in range(chance.choice([1, 2] if self.lonely else [1, 2, 5]))]
            await asyncio.gather(*(self.do_one(name, chance) for name in names))

    async def do_one(self, name: str, chance: random.Random) -> None:
        queue, engine = chance.choice(self.queues), self.some_engine(chance)
        match chance.choice(["push", "push", "push", "own", "own", "cancel", "reschedule"]):
            case "push":
                jobs = [self.new_job(chance, f"{name}-{at}") for at in range(chance.choice([1, 1, 1, 3]))]
                await self.push(engine, queue, jobs, IfExists.KEEP, chance)
            case "own":
                kind = chance.choice(list(IfExists))
                await self.push(engine, queue, [self.new_job(chance, chance.choice(OWN_IDS))], kind, chance)
            case "cancel":
                await self.patiently(engine.cancel(queue, [chance.choice(OWN_IDS)]), chance)
            case _:
                delay_ms = chance.choice([0, 100, 2000])
                await self.patiently(engine.reschedule(queue, [chance.choice(OWN_IDS)], delay_ms=delay_ms), chance)

    def new_job(self, chance: random.Random, job_id: str) -> NewJob:
        delay_ms = chance.choice([0, 0, 1, 50, 400, 2500])
        return NewJob(
            job_id,
            b"x",
            delay_ms=delay_ms,
            ttl_ms=chance.choice([0, 0, 0, delay_ms, delay_ms + 300]),
            tries=chance.choice([0, 1, 2, 5]),
            priority=chance.choice(list(Priority)),
        )

    async def push(
        self, engine: Engine, queue: Queue, jobs: list[NewJob], kind: IfExists, chance: random.Random
    ) -> None:
        pushed = await self.patiently(engine.push(queue, jobs, if_exists=kind), chance)
        if pushed and [moved.id for moved in pushed.jobs] != [job.id for job in jobs]:
            self.complain("the answer to somebody else", pushed, jobs)
        for moved in pushed.jobs if pushed else []:
            accepted = (queue, moved.id, moved.born)
            if accepted not in self.books.accepted:
                self.complain("accepted and not kept", moved)
            if self.journals and not any(accepted in notebook.written for notebook in self.notebooks):
                self.complain("answered before it was written", moved)

    async def consume(self) -> None:
        chance = random.Random(self.chance.random())
        while not self.over:
            if self.busy and self.calm and self.lonely:
                await asyncio.sleep(0.1)  # the rounds have consumers of their own
                continue
            await self.consume_once(chance)
            await asyncio.sleep(chance.random() if self.lonely else chance.choice([0.0, 0.02, 0.1]))

    async def consume_once(self, chance: random.Random) -> None:
        queues = chance.sample(self.queues, chance.randint(1, len(self.queues))) if self.busy else self.queues
        self.looks += 1
        limit = chance.choice([1, 1, 2, 5])
        wait_ms = chance.choice([0, 1, 300, 1000]) if self.busy and not self.lonely else 20_000
        call = self.some_engine(chance).reserve(
            queues,
            limit=limit,
            ttr_ms=HELD_MS if self.holds else chance.choice([20, 100, 400, 1000]),
            wait_ms=wait_ms,
        )
        task = asyncio.create_task(call)
        self.parked[task] = self.clock.now_ms(), queues
        deliveries = await self.outcome(task) or []
        del self.parked[task]
        if len(deliveries) > limit:
            self.complain("more than was asked for", limit, deliveries)
        for delivery in deliveries:
            self.receive(delivery)
        await asyncio.gather(*(self.handle(delivery, chance) for delivery in deliveries))

    async def play(self) -> None:
        """Rounds: consumers come, jobs come, all in about the time that a call takes; then a while of silence."""
        chance = random.Random(self.chance.random())
        number = 0
        while self.busy:
            number += 1
            consumers = [self.later(chance, self.consume_once(chance)) for _ in range(chance.randint(1, 3))]
            pushes = [
                self.later(chance, self.push_one(f"r{number}-{at}", chance)) for at in range(chance.randint(1, 3))
            ]
            tasks = [asyncio.create_task(one) for one in consumers + pushes]
            await asyncio.sleep(1.5 * self.moment_ms / 1000)
            for task in self.parked:
                task.cancel()
            await asyncio.wait(tasks)

    async def later(self, chance: random.Random, call: Coroutine[Any, Any, None]) -> None:
        await asyncio.sleep(chance.choice([0.0, 0.01, 0.1]) * chance.random())
        await call

    async def push_one(self, job_id: str, chance: random.Random) -> None:
        job = NewJob(job_id, b"x", delay_ms=chance.choice([0, 0, 0, 0, 0, 1, 1, 20, 100, 2000]))
        await self.push(self.some_engine(chance), chance.choice(self.queues), [job], IfExists.KEEP, chance)

    def interrupt(self) -> None:
        """Somebody who waits is cancelled, about when an answer arrives."""
        if self.parked and self.busy and not self.lonely and self.chance.random() < 0.3:
            asyncio.get_running_loop().call_soon(self.chance.choice(list(self.parked)).cancel)

    def receive(self, delivery: Delivery) -> None:
        lease, now = delivery.lease, self.clock.now_ms()
        if lease in self.received:
            self.complain("one delivery for two consumers", lease)
        self.received.add(lease)
        if delivery.due_at > now:
            self.complain("early", delivery)
        if delivery.lease_until <= now:
            return  # it came so late that the job may be elsewhere; the fence keeps this one out
        incarnation = lease.queue, lease.id, lease.born
        other = self.held.get(incarnation)
        if other and other.lease_until > now:
            self.complain("two consumers hold one job", delivery, other)
        self.held[incarnation] = delivery

    def let_go(self, lease: Lease) -> None:
        holder = self.held.get((lease.queue, lease.id, lease.born))
        if holder and holder.lease == lease:
            del self.held[lease.queue, lease.id, lease.born]

    async def hold(self, holder: HeldLeases, delivery: Delivery, chance: random.Random) -> None:
        """Work for longer than the lease lasts; `holder` renews it. While nothing is broken it cannot be lost."""
        lease, lost = delivery.lease, asyncio.Event()
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if delivery.lease_until <= self.clock.now_ms():
            return
        since = self.clock.now_ms()
        holder.add(lease, lost.set)
        self.unanswered += 1
        await asyncio.sleep(chance.choice([0.0, 0.1, 2.5]) * chance.random())
        self.let_go(lease)
        match chance.choice(["ack", "ack", "release", "kill", "give_back"]) if self.busy else "ack":
            case "ack":
                holder.ack(lease, answered.set_result)
                answer = await answered
                if isinstance(answer, StoreUnavailable):
                    self.complain("an ack was given up during an outage", lease)
            case "release":
                answer = await self.outcome(asyncio.create_task(holder.release(lease, delay_ms=30, error="no")))
            case "kill":
                answer = await self.outcome(asyncio.create_task(holder.kill(lease)))
            case _:
                answer = await self.outcome(asyncio.create_task(holder.give_back(lease)))
        self.unanswered -= 1
        sound = self.calm or self.sound_since + RECOVERY_MS < since
        if sound and lease.id not in OWN_IDS and (lost.is_set() or not isinstance(answer, Moved)):
            self.complain("a lease that was renewed is lost", lease, answer)

    async def handle(self, delivery: Delivery, chance: random.Random) -> None:
        if self.holder is not None:
            await self.hold(self.holder, delivery, chance)
            return
        lease, engine = delivery.lease, self.some_engine(chance)
        await asyncio.sleep(chance.choice([0.0, 0.0, 0.01, 0.2]) * chance.random())
        kinds = ["ack", "ack", "release", "kill", "crash", "late", "extend", "give_back", "replace"]
        match chance.choice(kinds) if self.busy and not (self.calm and self.lonely) else "ack":
            case "ack":
                await self.finish(engine, lease, chance)
            case "release":
                self.let_go(lease)
                delay_ms = chance.choice([0, 30, 700])
                await self.patiently(engine.release(lease, delay_ms=delay_ms, error="no"), chance)
            case "kill":
                self.let_go(lease)
                await self.patiently(engine.kill(lease), chance)
            case "give_back":
                self.let_go(lease)
                await self.patiently(engine.give_back([lease]), chance)
            case "late":
                await asyncio.sleep(1.0)
                await self.finish(engine, lease, chance)
            case "replace":  # the next incarnation is with another consumer when the old lease is acked
                await self.push(engine, lease.queue, [NewJob(lease.id, b"y")], IfExists.REPLACE, chance)
                await asyncio.sleep(0.1 * chance.random())
                await self.finish(engine, lease, chance)
            case "extend":
                await self.patiently(engine.extend(lease, chance.choice([100, 500])), chance)
                await asyncio.sleep(0.05)
                await self.finish(engine, lease, chance)
            case _:
                return

    async def finish(self, engine: Engine, lease: Lease, chance: random.Random) -> None:
        self.let_go(lease)
        answers = await self.patiently(engine.ack([lease]), chance)
        if not answers:
            return
        [answer] = answers
        entry = self.books.jobs.get((lease.queue, lease.id))
        if answer is None and entry and entry.born == lease.born:
            job = self.line(lease.queue, lease.id).jobs[lease.id]
            if not job.expired(self.clock.now_ms()):
                self.complain("called gone and still there", lease, entry)
        if not isinstance(answer, Moved):
            return
        if (answer.id, answer.born, answer.attempt) != (lease.id, lease.born, lease.attempt):
            self.complain("the answer to somebody else", answer, lease)
        if entry and entry.born == lease.born:
            self.complain("acked and still there", answer, entry)

    def some_engine(self, chance: random.Random) -> Engine:
        return chance.choice(self.engines)

    async def administer(self) -> None:
        chance = random.Random(self.chance.random())
        while self.busy:
            await asyncio.sleep(chance.random())
            queue = chance.choice(self.queues)
            engine = self.some_engine(chance)
            match chance.choice(["pause", "resume", "resume", "respawn", "rules"]):
                case "pause":
                    await self.patiently(engine.store.configure(queue, RulesChange(paused=True)), chance)
                case "resume":
                    await self.patiently(engine.store.configure(queue, RulesChange(paused=False)), chance)
                case "respawn":
                    await self.patiently(engine.respawn(queue, limit=3, tries=3), chance)
                case "rules":
                    change = RulesChange(expired_to_dead=chance.random() < 0.5, strict=chance.random() < 0.5)
                    await self.patiently(engine.store.configure(queue, change), chance)

    async def harm(self, group: asyncio.TaskGroup) -> None:
        chance = random.Random(self.chance.random())
        verbs = ["push", "reserve", "ack", "give_back", "release", "reap", "heads", "ping", "cancel", "configure"]
        while self.busy:
            await asyncio.sleep(chance.random() * 0.7)
            wire = chance.choice(self.wires)
            chosen = chance.sample(verbs, chance.randint(1, 4))
            kinds = ["down", "down", "away", "lost", "lost", "slow", "cut", "silent", "jump", "replace"]
            match chance.choice([*kinds, "drain"] if self.grouped else kinds):
                case "down":
                    wire.down(*chosen)
                case "away":
                    wire.down()
                case "lost":
                    wire.lose_answers(*chosen)
                case "slow":
                    wire.slow(*chosen, request=chance.random(), answer=chance.random())
                case "cut":
                    wire.break_wakeups()
                case "silent":
                    wire.silence_wakeups()
                case "jump":
                    self.clock.offset_ms += chance.choice([3, 40, 900])
                case "drain":
                    registry = self.some_engine(chance).store.registry
                    await self.patiently(set_drain(registry, "pair", "b", drains=chance.random() < 0.6), chance)
                case "replace" if self.busy:
                    await self.start_engine(group)
                    self._stops.pop(0).set()
            await asyncio.sleep(chance.random())
            wire.heal()
            self.lag(wire)

    # --- the verdict

    async def watch(self) -> None:
        """While nothing is broken nobody waits beside a job that is ready, and no lease outlives its end."""
        allowed = self.moment_ms if self.calm else RECOVERY_MS
        while True:
            await asyncio.sleep(allowed / 1000 / 3)
            before = self.clock.now_ms() - allowed
            if not self.calm and self.sound_since > before:
                continue
            waiting = {queue for since, queues in self.parked.values() if since < before for queue in queues}
            for (queue, job_id), entry in self.books.jobs.items():
                open_since = max(entry.since, entry.due_at, self.books.resumed_at.get(queue, 0))
                if entry.place == WAITING and queue in waiting and open_since < before and not self.shut(queue, job_id):
                    self.complain("nobody told the consumer that waits", queue.name, job_id, entry)
                if entry.place == LEASED and entry.until < before:
                    self.complain("nobody took back the lease", queue.name, job_id, entry)

    def shut(self, queue: Queue, job_id: str) -> bool:
        """Paused, or past its ttl: then it is the reaper's, who comes within a second."""
        line = self.line(queue, job_id)
        return line.rules.paused or line.jobs[job_id].expired(self.clock.now_ms())

    def line(self, queue: Queue, job_id: str) -> MemoryQueue:
        """Where a job is that the books have."""
        lines = [ledger._queues[queue] for ledger in self.ledgers if queue in ledger._queues]
        [line] = [line for line in lines if job_id in line.jobs]
        return line

    async def judge(self) -> None:
        self.books.audit(self.ledgers)
        if self.unanswered or self.holder:
            self.complain("a consumer still holds leases", self.unanswered)
        for ledger in self.ledgers:
            for problem in await ledger.check():
                self.complain("not sound", problem)
        reached = {lease for wire in self.wires for lease in wire.reached}
        returned = {lease for wire in self.wires for lease in wire.returned}
        for lease in reached - self.received - returned:
            if (str(lease.queue), lease.id) not in self.could_not_give_back:
                self.complain("a lease that nobody has and nobody gave back", lease)
        for lease in self.received - reached:
            self.complain("received from nowhere", lease)
        counts = [counted for ledger in self.ledgers for counted in await ledger.counts(self.queues)]
        for counted in counts:
            if counted.delayed or counted.ready or counted.leased:
                self.complain("left over", counted)
        dead = sum(counted.dead for counted in counts)
        if dead != len(self.books.jobs):
            self.complain("counts are not what the books say", dead, len(self.books.jobs))


class Lapses(logging.Handler):
    """Leases whose job could not be given back because the engine had stopped: they are left to lapse, and logged."""

    def __init__(self) -> None:
        super().__init__()
        self.known: set[tuple[str, str]] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg == "give_back_failed":
            self.known |= {(record.queue, job) for job in record.jobs}  # type: ignore[attr-defined]

    def __contains__(self, key: object) -> bool:
        return key in self.known


def live(seed: int) -> World:
    """Run one seed to its end; `books.complaints` of the world says what was wrong."""
    world = World(seed)
    log = logging.getLogger("duetime.engine")
    state, heavy = random.getstate(), batcher.HEAVY_JOBS
    check_every_s, many = waiters.CHECK_EVERY_S, engine_module.MANY_QUEUES
    longest_rest_s = reaper.LONGEST_REST_S
    random.seed(seed)
    log.addHandler(world.could_not_give_back)
    if world.calm:
        waiters.CHECK_EVERY_S, reaper.LONGEST_REST_S = 1e6, 3.0
    if seed % 5 == 0:
        batcher.HEAVY_JOBS = 1  # even these small calls take turns
    if seed % 3 == 0:
        engine_module.MANY_QUEUES = len(world.queues)  # the look that asks for all heads at first
    try:
        run_virtual(asyncio.wait_for(world.live(), LIFE_S), seed=seed)
    finally:
        reaper.LONGEST_REST_S = longest_rest_s
        waiters.CHECK_EVERY_S, engine_module.MANY_QUEUES, batcher.HEAVY_JOBS = check_every_s, many, heavy
        log.removeHandler(world.could_not_give_back)
        random.setstate(state)
    return world
