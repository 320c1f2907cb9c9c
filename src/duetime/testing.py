"""Tools to test programs that push jobs, without a server and without waiting.

    with in_memory(app) as box:             # pushes go to a store of the test's own
        sign_up("ann")
        box.assert_pushed(send_mail, to="ann")
        box.travel("10m")                   # what is due within ten minutes is due now
        box.run()                           # run what is due, by the rules of a worker

    with inline(app):                       # pushes run immediately, here
        sign_up("ann")

The store in memory is a real one, and retries, backoff and dead letters follow the worker's rules; only the processes
are missing. Inside the block the App pushes nowhere else.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from duetime.client import event_loop
from duetime.client.call import Call
from duetime.engine import Engine
from duetime.model.clock import Duration, ManualClock, SystemClock, instant_ms
from duetime.model.errors import NOT_JSON, DuetimeError
from duetime.model.job import STEP_JOBS, Counts, Delivery, Event, Job, Moved, State
from duetime.model.names import check_queue
from duetime.stores.base import Ask, Finish, GiveBack, Push, Pushed, Store
from duetime.stores.open import open_store
from duetime.wire.payload import counter_name, read
from duetime.worker.app import App
from duetime.worker.batches import BatchKeeper
from duetime.worker.current_job import CurrentJob, JobLink, reset_current, set_current
from duetime.worker.execution import ThreadLoop, execute, find, run_task, run_task_async
from duetime.worker.held_jobs import NOT_A_TASK, error_text, finish_of
from duetime.worker.options import DEFAULT_BACKOFF, WorkerOptions
from duetime.worker.pusher import Outgoing, Pusher, Work, in_generation, successor, unstored_answer
from duetime.worker.retry_rules import Policy, Verb, decide, refused
from duetime.worker.runs import Cancel, Ended, Failure, JobInfo, Outcome, Run
from duetime.worker.task import Task

T = TypeVar("T")

TTR_MS = 3_600_000
MOST_RUNS = 10_000
"""After this many, `Box.run` fails: a task that pushes itself again without a delay would never end."""


class PushedTask(Struct, frozen=True):
    """One push: its task and arguments, the queue, and when the job is due (epoch milliseconds)."""

    task: str
    arguments: dict[str, Any]
    queue: str
    id: str
    due_at: int
    kept: bool
    """True if a job with this id existed, so that this push did nothing."""


class Ran(Struct, frozen=True):
    """One run: how it ended, with the failure if there was one."""

    task: str
    id: str
    attempt: int
    ended: Ended
    failure: Failure | None = None

    @property
    def is_done(self) -> bool:
        return self.ended is Ended.DONE


class Box:
    """Returned by `in_memory`: keeps the pushed jobs in a store in memory, and runs them on demand."""

    def __init__(self, app: App, store: Store, clock: ManualClock) -> None:
        self._app = app
        self._store = store
        self._clock = clock
        self._loop = ThreadLoop()
        self.pushes: list[PushedTask] = []

    # --- the pusher

    def push(self, many: Sequence[Outgoing]) -> Work[list[Moved]]:
        """Pushes to the store of the test without any call."""
        yield from ()
        return [self._push_one(outgoing) for outgoing in many]

    def _push_one(self, outgoing: Outgoing) -> Moved:
        data = outgoing.data
        if outgoing.counter:
            name = counter_name(self._app.namespace, outgoing.counter)
            outgoing = in_generation(outgoing, _now(self._store.registry.increment(name, 0)).value)
        pushed = self._push(outgoing)
        while following := successor(outgoing, pushed.jobs[0], pushed.now):
            outgoing = following
            pushed = self._push(outgoing)
        [moved] = pushed.jobs
        kept = moved.event is Event.KEPT
        arguments: dict[str, Any] = msgspec.json.decode(data)
        self.pushes.append(PushedTask(outgoing.name, arguments, outgoing.queue.name, moved.id, moved.due_at, kept))
        return moved

    def _push(self, outgoing: Outgoing) -> Pushed:
        [answer] = _now(self._store.push(outgoing.queue, [Push([outgoing.job], outgoing.if_exists)]))
        if isinstance(answer, DuetimeError):
            raise answer
        return answer

    def close(self) -> None:
        """Delete the store. `in_memory` does this at the end of its block."""
        _aside(self._loop.close)

    # --- time

    @property
    def now(self) -> int:
        return self._clock.now_ms()

    def travel(self, duration: Duration) -> None:
        """Move the clock forward. Leases that run out by then expire. Runs nothing."""
        self._clock.advance(duration)
        _now(self._store.reap())

    def travel_to(self, instant: datetime | str) -> None:
        """Move the clock forward to an instant. It never moves back."""
        self.travel(f"{max(0, instant_ms(instant) - self.now)}ms")

    # --- running

    def run(self, *queues: str) -> list[Ran]:
        """Run the due jobs of these queues, or of all queues of the App's tasks and pushes, until no job is due,
        including the jobs that they push. The clock does not move meanwhile.
        """
        runs: list[Ran] = []
        while True:
            found = [ran for name in queues or self._queues() for ran in self._run_queue(name)]
            if not found and self._keep_batches():
                continue
            runs += found
            if not found:
                return runs
            if len(runs) > MOST_RUNS:
                raise AssertionError(f"{MOST_RUNS} runs and no end: a task pushes itself again without a delay")

    def _keep_batches(self) -> bool:
        """Whether anything followed from the state of the batches."""
        return event_loop.run(BatchKeeper(self._app).check_now())

    def _queues(self) -> list[str]:
        tasks = [task.defaults.queue for task in self._app.tasks.values()]
        return list(dict.fromkeys([*tasks, *(one.queue for one in self.pushes)]))

    def _run_queue(self, name: str) -> list[Ran]:
        queue = check_queue(self._app.namespace, name)
        reserved = _now(self._store.reserve(queue, [Ask(STEP_JOBS, TTR_MS)]))
        return [self._run_one(one) for one in reserved.deliveries[0]]

    def _run_one(self, delivery: Delivery) -> Ran:
        try:
            payload = read(delivery.body)
        except NOT_JSON:
            lease, failure = delivery.lease, Failure(NOT_A_TASK, "the body of the job is no task")
            _now(self._store.kill(lease, str(failure)))
            return Ran("", lease.id, lease.attempt, Ended.FAIL, failure)
        return self._run(Run(0, delivery, payload, timeout_s=0))

    def _run(self, run: Run) -> Ran:
        policy = Policy(WorkerOptions.tries, DEFAULT_BACKOFF)
        if failure := refused(run, policy, self.now):
            outcome = Outcome(Ended.FAIL, failure)
        else:
            outcome = _aside(lambda: execute(self._app, run.info(), NO_WORKER, self._loop, run.payload))
        task = self._app.find_task(run.payload.name)
        backoff = task.backoff if task else None
        decision = decide(run, outcome, policy=policy, backoff=backoff, now_ms=self.now)
        lease, error = run.delivery.lease, error_text(decision)
        match decision.verb:
            case Verb.ACK:
                run.outcome = outcome
                finish = finish_of(self._app, run) or Finish(lease)
                _now(self._store.finish(lease.queue, [finish]))
            case Verb.RELEASE:
                _now(self._store.release(lease, decision.delay_ms, error))
            case Verb.KILL:
                _now(self._store.kill(lease, error))
            case Verb.GIVE_BACK:
                _now(self._store.give_back(lease.queue, [GiveBack(lease, decision.delay_ms)]))
        return Ran(run.payload.name, lease.id, lease.attempt, outcome.ended, outcome.failure)

    # --- looking

    def counts(self, queue: str) -> Counts:
        """Return the number of jobs of a queue in each state."""
        [counts] = _now(self._store.counts([check_queue(self._app.namespace, queue)]))
        return counts

    def jobs(self, queue: str, state: State) -> list[Job]:
        """Return the jobs of a queue in a state. Dead letters have their error."""
        return list(_now(self._store.list_jobs(check_queue(self._app.namespace, queue), state, limit=STEP_JOBS)).jobs)

    def respawn(self, queue: str, *ids: str) -> None:
        """Make dead letters ready again."""
        _now(self._store.respawn(check_queue(self._app.namespace, queue), ids=ids, limit=STEP_JOBS))

    def pushed(self, task: Task[..., Any] | None = None, **arguments: Any) -> list[PushedTask]:
        """Return the pushes of a task, or of all tasks, with at least these arguments."""
        wanted: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(arguments))
        return [
            one
            for one in self.pushes
            if (task is None or one.task == task.name) and wanted.items() <= one.arguments.items()
        ]

    def assert_pushed(self, task: Task[..., Any], *, times: int | None = None, **arguments: Any) -> list[PushedTask]:
        """Fail unless there was at least one such push, or exactly `times`. Returns these pushes."""
        found = self.pushed(task, **arguments)
        if not found if times is None else len(found) != times:
            wanted = "at least once" if times is None else f"{times} times"
            raise AssertionError(f"{task.name} must be pushed {wanted} with {arguments}; pushed were: {self._shown()}")
        return found

    def assert_not_pushed(self, task: Task[..., Any], **arguments: Any) -> None:
        """Raise AssertionError if the task was pushed with at least these arguments."""
        if found := self.pushed(task, **arguments):
            raise AssertionError(f"{task.name} must not be pushed with {arguments}, but was {len(found)} times")

    def assert_nothing_pushed(self) -> None:
        """Raise AssertionError if anything was pushed."""
        if self.pushes:
            raise AssertionError(f"nothing must be pushed; pushed were: {self._shown()}")

    def _shown(self) -> str:
        return ", ".join(f"{one.task}({one.arguments})" for one in self.pushes) or "none"


class Inline:
    """A Pusher that runs every job immediately, inside its middleware. The push raises what the task raises, except
    Cancel. Arguments are what a worker would read: what JSON cannot carry must fail the test.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._loop = ThreadLoop()

    def push(self, many: Sequence[Outgoing]) -> Work[list[Moved]]:
        for outgoing in many:
            task, job = self._find(outgoing)
            if task.is_async and _loop_runs():
                yield Call(_not_sent, _not_sent, partial(_run_in_loop, task, job))
                continue
            with suppress(Cancel), _as_current(job):
                _aside(partial(self._run, task, job))
        return [unstored_answer(outgoing) for outgoing in many]

    def close(self) -> None:
        _aside(self._loop.close)

    def _run(self, task: Task[..., Any], job: CurrentJob) -> None:
        copy_context().run(run_task, task, job, self._loop)

    def _find(self, outgoing: Outgoing) -> tuple[Task[..., Any], CurrentJob]:
        job, queue = outgoing.job, outgoing.queue
        info = JobInfo(
            job.id, "", queue.name, queue.namespace, outgoing.name, 1, 1, job.tries, 0.0, job.body, job.attributes
        )
        return find(self._app, info, NO_WORKER, read(job.body))


class MemoryCaller:
    """Calls of middleware go to a store in memory, through an engine that lives as long as the call."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def send(self, call: Call[T]) -> T:
        return event_loop.run(self.send_async(call))

    async def send_async(self, call: Call[T]) -> T:
        async with Engine(self._store) as engine:
            return await call.run(engine)


@contextmanager
def in_memory(app: App, *, now: datetime | str | None = None) -> Generator[Box]:
    """Send the App's pushes to a store in memory. Its clock starts at `now`, and only the test moves it."""
    clock = ManualClock(SystemClock().now_ms() if now is None else instant_ms(now))
    store = _now(open_store("memory:", clock=clock))
    box = Box(app, store, clock)
    real = app.clock
    app.clock = clock
    try:
        with _pushing(app, box, store):
            yield box
    finally:
        app.clock = real
        box.close()


@contextmanager
def inline(app: App) -> Generator[None]:
    """Run the App's pushes immediately, whatever their delay. They raise what the task raises, except Cancel."""
    pusher = Inline(app)
    try:
        with _pushing(app, pusher, _now(open_store("memory:"))):
            yield
    finally:
        pusher.close()


@contextmanager
def _pushing(app: App, pusher: Pusher, store: Store) -> Generator[None]:
    real, app.pusher = (app.pusher, app.caller), pusher
    app.caller = MemoryCaller(store)
    try:
        yield
    finally:
        app.pusher, app.caller = real


@contextmanager
def _as_current(job: CurrentJob) -> Generator[None]:
    token = set_current(job)
    try:
        yield
    finally:
        reset_current(token)


async def _run_in_loop(task: Task[..., Any], job: CurrentJob, _: Engine) -> None:
    with suppress(Cancel), _as_current(job):
        await asyncio.create_task(run_task_async(task, job))


def _not_sent(*_: object) -> Any:
    raise AssertionError("a run inside the test is not sent to a server")


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _aside(work: Callable[[], T]) -> T:
    """Call a function that may run an event loop: where one runs already, in a thread."""
    if not _loop_runs():
        return work()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(copy_context().run, work).result()


def _now(work: Coroutine[Any, Any, T]) -> T:
    """Run a call of the store in memory, which never waits, so neither a loop nor a thread is needed."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("the store in memory must not wait")


def _ignore(word: str, value: Any) -> None:
    """Progress, output and extensions have no meaning where time stands still."""


NO_WORKER = JobLink(_ignore)
