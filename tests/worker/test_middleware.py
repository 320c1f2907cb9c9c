"""Middleware around runs, and what comes with Duetime: by the rules of a worker, on a store in memory."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import pytest
from cryptography.fernet import Fernet

import duetime
from duetime import chain, group
from duetime.client.call import Call
from duetime.client.calls import push
from duetime.engine import Engine
from duetime.model.clock import ManualClock, duration_ms
from duetime.model.errors import InvalidRequest
from duetime.model.job import Event, IfExists, NewJob, State
from duetime.model.names import check_queue
from duetime.stores.memory.store import MemoryStore
from duetime.testing import NO_WORKER, in_memory, inline
from duetime.wire.payload import describe
from duetime.worker.current_job import CurrentJob
from duetime.worker.middleware import (
    context,
    debounce,
    encrypted,
    rate_limit,
    skip_if,
    throttle_exceptions,
    unique_until_start,
    without_overlapping,
)
from duetime.worker.pusher import send_work
from duetime.worker.runs import Ended, JobInfo

TENANT: ContextVar[str] = ContextVar("tenant", default="none")


@pytest.fixture
def app() -> duetime.App:
    return duetime.App("redis://nowhere.example/0")


class Tracer:
    """Notes when it is entered and left, as a plain and as an async middleware."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def plain(self, name: str) -> Callable[[CurrentJob, Callable[[], Any]], Any]:
        def middleware(job: CurrentJob, call: Callable[[], Any]) -> Any:
            self.seen.append(f"{name} {job.name} {job.arguments}")
            return call()

        return middleware

    def gentle(self, name: str) -> Callable[[CurrentJob, Callable[[], Awaitable[Any]]], Awaitable[Any]]:
        async def middleware(job: CurrentJob, call: Callable[[], Awaitable[Any]]) -> Any:
            self.seen.append(f"{name} before")
            await asyncio.sleep(0)
            answer = await call()
            self.seen.append(f"{name} after {answer}")
            return answer

        return middleware


def test_it_goes_around_plain_and_async_tasks_from_the_app_inwards(app: duetime.App) -> None:
    tracer = Tracer()
    app.use(tracer.gentle("app"))
    around = [tracer.plain("one"), tracer.gentle("two"), tracer.plain("three")]

    @app.task(name="plain", middleware=around)
    def plain(key: int) -> int:
        assert asyncio.run(asyncio.sleep(0, key)) == key  # a plain task may run a loop
        tracer.seen.append(f"ran {key}")
        return key + 1

    @app.task(name="gentle", middleware=around)
    async def gentle(key: int) -> int:
        await asyncio.sleep(0)
        tracer.seen.append(f"ran {key}")
        return key + 1

    for task, name in ((plain, "plain"), (gentle, "gentle")):
        with in_memory(app) as box:
            task.delay(7)
            [ran] = box.run()
        assert ran.is_done
        assert tracer.seen == [
            "app before",
            f"one {name} {{'key': 7}}",
            "two before",
            f"three {name} {{'key': 7}}",
            "ran 7",
            "two after 8",
            "app after 8",
        ]
        tracer.seen.clear()


async def test_inside_a_running_loop_it_works_as_well(app: duetime.App) -> None:
    tracer = Tracer()
    app.use(tracer.gentle("app"))

    @app.task
    def plain() -> None: ...

    with in_memory(app) as box:
        await plain.delay_async()
        assert box.run()[0].is_done
    with inline(app):
        plain.delay()
        await plain.delay_async()
    assert tracer.seen == ["app before", "app after None"] * 3


def test_an_exception_passes_through_and_may_be_replaced(app: duetime.App) -> None:
    async def no_retry(job: CurrentJob, call: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await call()
        except LookupError as error:
            raise duetime.Fail(str(error)) from error

    @app.task(middleware=[no_retry])
    def find(key: str) -> None:
        raise KeyError(key) if key == "a" else ValueError(key)

    with in_memory(app) as box:
        find.delay("a")
        find.delay("b")
        ends = [one.ended for one in box.run("default")]
    assert sorted(ends) == [Ended.RAISED, Ended.FAIL]


def test_postpone_uses_no_try(app: duetime.App) -> None:
    ready: list[bool] = []

    @app.task(tries=1)
    def wait() -> None:
        if not ready:
            raise duetime.Postpone("not yet", after="10s")

    with in_memory(app) as box:
        wait.delay()
        for _ in range(3):
            [ran] = box.run()
            assert ran.ended is Ended.POSTPONED
            assert box.run() == []
            box.travel("10s")
        ready.append(True)
        [ran] = box.run()
        assert (ran.is_done, ran.attempt) == (True, 4)


def test_a_rate_limit_holds_per_key_and_spreads_the_line(app: duetime.App) -> None:
    ran: list[str] = []

    @app.task(tries=1, middleware=[rate_limit(2, per="1s", key=lambda job: job.arguments["to"])])
    def send(to: str) -> None:
        ran.append(to)

    with in_memory(app) as box:
        for _ in range(5):
            send.delay("ann")
        send.delay("bob")
        ends = box.run()
        assert sorted(ran) == ["ann", "ann", "bob"]
        assert sum(one.ended is Ended.POSTPONED for one in ends) == 3
        due = sorted(job.due_at - box.now for job in box.jobs("default", State.DELAYED))
        assert due == [1000, 1000, 2000]
        box.travel("1001ms")
        box.run()
        assert len(ran) == 5
        box.travel("1001ms")
        box.run()
        assert len(ran) == 6
        assert box.counts("default").total == 0


def test_a_rate_limit_may_drop(app: duetime.App) -> None:
    @app.task(middleware=[rate_limit(1, per="1m", drop=True)])
    def send() -> None: ...

    with in_memory(app) as box:
        send.bulk([(), ()])
        assert sorted(one.ended for one in box.run()) == [Ended.DONE, Ended.CANCEL]
    with pytest.raises(InvalidRequest):
        rate_limit(0, per="1s")


def test_after_some_exceptions_the_others_wait(app: duetime.App) -> None:
    broken = [True]

    @app.task(tries=1, middleware=[throttle_exceptions(2, per="1m")])
    def call() -> None:
        if broken:
            raise ConnectionError("down")

    with in_memory(app) as box:
        call.bulk([()] * 5)
        ends = [one.ended for one in box.run()]
        assert ends == [Ended.RAISED] * 2 + [Ended.POSTPONED] * 3
        broken.clear()
        box.travel("61s")
        assert [one.is_done for one in box.run()] == [True] * 3
        assert box.counts("default").dead == 2


def test_jobs_are_skipped_by_a_condition(app: duetime.App) -> None:
    gone = {17}

    @app.task(middleware=[skip_if(lambda job: job.arguments["user"] in gone)])
    async def greet(user: int) -> None: ...

    with in_memory(app) as box:
        greet.bulk([(17,), (18,)])
        assert [one.ended for one in box.run()] == [Ended.CANCEL, Ended.DONE]


def test_a_key_that_is_held_postpones_and_is_free_afterwards(app: duetime.App) -> None:
    order: list[str] = []

    @app.task(tries=1, middleware=[without_overlapping(key=lambda job: job.arguments["account"], after="5s")])
    def charge(account: int, depth: int = 0) -> None:
        order.append(f"begin {account}")
        if depth:
            charge.delay(account)
            charge.delay(account + 1)
            order.extend(f"{one.ended.name} inside" for one in box.run())
        order.append(f"end {account}")

    with in_memory(app) as box:
        charge.delay(1, depth=1)
        box.run()
        assert order == ["begin 1", "begin 2", "end 2", "POSTPONED inside", "DONE inside", "end 1"]
        box.travel("5s")
        assert [one.is_done for one in box.run()] == [True]
        charge.delay(1)
        assert [one.is_done for one in box.run()] == [True]


class EngineCaller:
    """Calls of middleware go to an engine of the test."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def send(self, call: Call[Any]) -> Any:
        raise AssertionError("the test is async")

    async def send_async(self, call: Call[Any]) -> Any:
        return await call.run(self._engine)


async def test_a_hung_run_frees_no_lock_that_another_run_holds(app: duetime.App) -> None:
    clock, queue, alone = ManualClock(), check_queue("default", "charge"), without_overlapping()
    charge = app.task(name="charge", queue="charge")(lambda: None)
    async with Engine(MemoryStore(clock)) as engine:
        app.caller = EngineCaller(engine)

        async def lease(ttr: str) -> CurrentJob:
            await engine.push(queue, [NewJob(app.make_id(), b"{}", tries=0)])
            [delivery] = await engine.reserve([queue], ttr_ms=duration_ms(ttr))
            one = delivery.lease
            info = JobInfo(one.id, "", "charge", "default", "charge", one.attempt, 1, 0, 0.0, b"{}", {}, one.born)
            return CurrentJob(info, NO_WORKER, charge, b"{}")

        def begin(job: CurrentJob) -> tuple[asyncio.Task[Any], asyncio.Event, asyncio.Event]:
            began, end = asyncio.Event(), asyncio.Event()

            async def run() -> None:
                began.set()
                await end.wait()

            return asyncio.create_task(alone(job, run)), began, end

        hung, hung_began, hung_end = begin(await lease("10s"))
        await hung_began.wait()
        clock.advance("11s")
        await engine.store.reap()
        second, second_began, second_end = begin(await lease("1h"))
        await second_began.wait()
        clock.advance("130s")  # longer than the mark of the takeover lives
        hung_end.set()
        await hung
        third = await lease("1h")
        with pytest.raises(duetime.Postpone):
            await alone(third, lambda: asyncio.sleep(0))
        second_end.set()
        await second
        assert await alone(third, lambda: asyncio.sleep(0, "ran")) == "ran"


def test_debounce_runs_no_job_that_was_replaced_before_it_began(app: duetime.App) -> None:
    ran: list[tuple[int, str]] = []

    @app.task(middleware=[debounce("30s", key=lambda job: job.arguments["doc"])])
    def index(doc: int, text: str) -> None:
        ran.append((doc, text))
        if doc == 1:
            assert index.delay(2, "new").event is Event.REPLACED  # a worker holds that one already

    with in_memory(app) as box:
        index.delay(1, "first")
        box.travel("1s")
        index.delay(2, "old")
        box.travel("30s")
        box.run()
        assert ran == [(1, "first")]
        assert index.delay(2, "newest").event is Event.REPLACED
        box.travel("30s")
        box.run()
        assert ran == [(1, "first"), (2, "newest")]
        assert box.counts("default").total == 0


def test_debounce_runs_the_last_push_once(app: duetime.App) -> None:
    ran: list[tuple[int, str]] = []

    @app.task(middleware=[debounce("30s", key=lambda job: job.arguments["doc"])])
    def index(doc: int, text: str) -> None:
        ran.append((doc, text))
        if text == "again":
            index.delay(doc, "from within")

    with in_memory(app) as box:
        index.delay(1, "a")
        box.travel("20s")
        assert index.delay(1, "b").event is Event.REPLACED
        index.delay(2, "other")
        box.travel("20s")
        assert box.run() == []
        box.travel("10s")
        box.run()
        assert sorted(ran) == [(1, "b"), (2, "other")]
        index.delay(1, "again")
        box.travel("30s")
        box.run()
        index.delay(1, "last")  # takes the place of the one that was pushed from within
        box.travel("30s")
        box.run()
        assert ran[2:] == [(1, "again"), (1, "last")]


def test_unique_until_start_keeps_the_one_that_waits(app: duetime.App) -> None:
    ran: list[int] = []

    @app.task(middleware=[unique_until_start("1h")])
    def sync(account: int) -> None:
        ran.append(account)
        if ran == [1]:
            assert sync.delay(account).event is Event.ACCEPTED  # it has begun, so the next one counts
            assert sync.delay(account).event is Event.KEPT
            raise ConnectionError  # a job that is tried again is in nobody's way

    with in_memory(app) as box:
        first, second = sync.delay(1), sync.delay(1)
        assert (first.event, second.event, second.id) == (Event.ACCEPTED, Event.KEPT, first.id)
        box.run()
        assert sync.delay(2).event is Event.ACCEPTED
        box.travel("1m")
        box.run()
        assert sorted(ran) == [1, 1, 1, 2]


def test_encrypted_arguments_are_readable_with_the_key(app: duetime.App) -> None:
    old, new = Fernet.generate_key(), Fernet.generate_key()
    ran: list[str] = []

    def make(name: str, *keys: bytes) -> Any:
        @app.task(name=name, middleware=[encrypted(*keys), skip_if(lambda job: job.arguments["card"] == "skip")])
        def pay(card: str) -> None:
            ran.append(card)

        return pay

    pay = make("pay", old)
    with in_memory(app) as box:
        job_id = pay.delay("4111").id
        box.assert_pushed(pay, card="4111")
        [job] = box.jobs("default", State.READY)
        assert b"4111" not in job.body
        assert "4111" not in (describe(job.body) or "")
        del app.tasks["pay"]
        make("pay", new, old)
        assert box.run()[0].id == job_id
        assert ran == ["4111"]
        pay.delay("4222")
        del app.tasks["pay"]
        make("pay", new)
        [late] = box.run()
        assert late.ended is Ended.FAIL
        assert "cannot be decrypted" in str(late.failure)
        assert "4222" not in str(late.failure)
    with inline(app):
        app.tasks["pay"].delay("inline")
    assert ran == ["4111", "inline"]


@pytest.mark.parametrize("change", ["nothing", "task", "task and its label", "queue", "id", "namespace"])
def test_encrypted_arguments_run_only_where_they_were_pushed(change: str) -> None:
    key, ran = Fernet.generate_key(), list[str]()

    def record(card: str) -> None:
        ran.append(card)

    def program(namespace: str) -> duetime.App:
        app = duetime.App("redis://nowhere.example/0", namespace=namespace)
        for name in ("refund", "charge"):
            app.task(name=name, queue="money", middleware=[encrypted(key)])(record)
        return app

    source = program("default")
    with in_memory(source) as box:
        job_id = source.tasks["refund"].delay("4111").id
        [job] = box.jobs("money", State.READY)
    body, queue, job_id = job.body, "money", "another" if change == "id" else job_id
    if change == "task":
        body = body.replace(b'"job":"refund"', b'"job":"charge"')
    elif change == "task and its label":
        body = body.replace(b'"refund"', b'"charge"')
    elif change == "queue":
        queue = "default"
    target = program("other" if change == "namespace" else "default")
    with in_memory(target) as box:
        target.send(push(check_queue(target.namespace, queue), [NewJob(job_id, body)], IfExists.KEEP))
        [end] = box.run(queue)
        if change == "nothing":
            assert (end.ended, ran) == (Ended.DONE, ["4111"])
        else:
            assert (end.ended, ran, box.counts(queue).dead) == (Ended.FAIL, [], 1)
            assert "encrypted for" in str(end.failure)


def test_encrypted_arguments_go_along_when_a_job_gets_its_id_or_queue_later(app: duetime.App) -> None:
    key, ran = encrypted(Fernet.generate_key()), list[str]()

    @app.task(queue="one", middleware=[key])
    def plain(card: str) -> None:
        ran.append(card)

    @app.task(queue="two", unique_for="1h", middleware=[key])
    def unique(card: str) -> None:
        ran.append(card)

    @app.task(queue="two", middleware=[debounce("1s"), key])
    def debounced(card: str) -> None:
        ran.append(card)

    with in_memory(app) as box:
        elsewhere = plain.options(queue="two")
        chain(plain.step("a"), elsewhere.step("b"), elsewhere.step("c")).delay()
        group(plain.step("d"), elsewhere.step("e")).then(plain.step("f")).delay()
        with app.batch(queue="one", then=plain.step("g")).open() as batch:
            batch.add(elsewhere.step("h"))
        unique.options(delay="2h").delay("i")
        box.travel("90m")
        assert unique.delay("i").event is Event.ACCEPTED
        debounced.delay("j")
        debounced.delay("k")
        box.travel("1h")
        assert {one.ended for one in box.run()} == {Ended.DONE}
    assert sorted(ran) == ["a", "b", "c", "d", "e", "f", "g", "h", "i", "i", "k"]


@pytest.mark.parametrize("kind", ["unique_for", "unique_until_start", "debounce"])
def test_ids_of_encrypted_jobs_cannot_be_made_without_the_key(app: duetime.App, kind: str) -> None:
    def job_id(*keys: bytes) -> str:
        around: list[Any] = [encrypted(*keys)] if keys else []
        if kind == "unique_until_start":
            around.append(unique_until_start("1h"))
        elif kind == "debounce":
            around.insert(0, debounce("1h", key=lambda job: job.arguments["card"]))
        options: Any = {"unique_for": "1h"} if kind == "unique_for" else {}
        app.tasks.clear()
        task = app.task(name="pay", middleware=around, **options)(lambda card: None)
        with in_memory(app):
            return task.delay("4111").id

    one, other = Fernet.generate_key(), Fernet.generate_key()
    assert job_id(one) == job_id(one, other)  # the first key makes the id
    assert len({job_id(), job_id(one), job_id(other)}) == 3


def test_a_job_without_encryption_is_refused(app: duetime.App) -> None:
    @app.task(name="pay", middleware=[encrypted(Fernet.generate_key())])
    def pay(card: str) -> None:
        raise AssertionError("it ran")

    with in_memory(app) as box:
        plain = duetime.App("memory:")
        prepared = plain.task(name="pay")(lambda card: None).prepare(None, None, ("evil",), {})
        send_work(app, box.push([prepared]))
        [ran] = box.run()
    assert ran.ended is Ended.FAIL
    assert "must be encrypted" in str(ran.failure)


def test_the_context_of_the_push_is_that_of_the_run(app: duetime.App) -> None:
    seen: list[str] = []
    app.use(context(TENANT))

    @app.task
    def plain() -> None:
        seen.append(TENANT.get())

    @app.task
    async def gentle() -> None:
        seen.append(TENANT.get())

    with in_memory(app) as box:
        for task in (plain, gentle):
            token = TENANT.set("acme")
            task.delay()
            task.options(headers={"tenant": "given"}).delay()
            TENANT.reset(token)
            task.delay()
            box.run()
            assert sorted(seen) == ["acme", "given", "none"]
            seen.clear()


def test_a_trace_goes_on_in_the_run(app: duetime.App) -> None:
    from opentelemetry import trace
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

    seen: list[int] = []
    app.use(context(trace=True))

    @app.task
    def traced() -> None:
        seen.append(trace.get_current_span().get_span_context().trace_id)

    span = NonRecordingSpan(SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=TraceFlags(1)))
    with in_memory(app) as box:
        with trace.use_span(span):
            traced.delay()
        traced.delay()
        box.run()
    assert sorted(seen) == [0, 0xABC]
