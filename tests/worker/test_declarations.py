"""What a task is declared with is checked there and then, whatever the store."""

import functools
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import duetime
from duetime.model.backoff import Exponential
from duetime.model.errors import InvalidId, InvalidRequest, InvalidSettings, InvalidTime
from duetime.model.job import NewJob
from duetime.testing import in_memory, inline
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
from tests.worker.conftest import Start


class Raises:
    def delay_ms(self, failures: int) -> int:
        raise LookupError


class Answers:
    def __init__(self, wait_ms: Any) -> None:
        self._wait_ms = wait_ms

    def delay_ms(self, failures: int) -> Any:
        return self._wait_ms


def job() -> None: ...


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("tries", 2.5),
        ("tries", "3"),
        ("tries", None),
        ("tries", True),
        ("tries", -1),
        ("tries", 65_536),
        ("backoff", [1, 2]),
        ("backoff", ("1s", "2s")),
        ("backoff", object()),
        ("backoff", "soon"),
        ("backoff", -1),
        ("backoff", Exponential),
        ("backoff", Raises()),
        ("backoff", Answers(None)),
        ("backoff", Answers(1.5)),
        ("backoff", Answers(-1)),
        ("timeout", "soon"),
        ("timeout", [1]),
        ("retry_until", [1]),
        ("unique_for", "soon"),
        ("result_ttl", "soon"),
        ("max_exceptions", "3"),
        ("max_exceptions", 1.5),
        ("max_exceptions", -1),
        ("fail_on_timeout", "no"),
        ("fail_on_timeout", 1),
        ("middleware", job),
        ("middleware", ["no callable"]),
        ("queue", 5),
        ("queue", "a b"),
        ("name", 5),
    ],
)
def test_a_wrong_option_is_refused_where_the_task_is_declared(option: str, value: Any) -> None:
    app = duetime.App("memory:")
    with pytest.raises(InvalidRequest):
        app.task(**{option: value})(job)
    assert app.tasks == {}


class Handler:
    def handle(self) -> None: ...


def stream() -> Iterator[int]:
    yield 1


async def stream_gently() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("function", [Handler, stream, stream_gently, "shop.send", Handler(), classmethod(job), None])
def test_only_a_function_that_runs_when_called_is_a_task(function: Any) -> None:
    app = duetime.App("memory:")
    with pytest.raises(InvalidRequest, match="task must be a function"):
        app.task(name="one")(function)
    with pytest.raises(InvalidRequest, match="task must be a function"):
        app.every("1h")(function)
    assert app.tasks == {}


def test_a_task_is_not_made_into_another_task() -> None:
    app = duetime.App("memory:")
    recurring = app.every("1h")(job)
    with pytest.raises(InvalidRequest, match=r"put @app\.task below other decorators of the App, got <task "):
        app.task(tries=3)(recurring)
    with pytest.raises(InvalidRequest, match="hook of failed must be a function"):
        recurring.failed(5)  # type: ignore[arg-type]


def test_the_error_names_the_option_the_rule_and_what_was_given() -> None:
    app = duetime.App("memory:")
    for given in (lambda: app.task(tries=2.5)(job), lambda: app.task(job).options(tries=2.5)):  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match=r"tries must be a whole number from 0 to 65535, got 2\.5"):
            given()
    app = duetime.App("memory:")
    with pytest.raises(InvalidRequest, match=r"backoff must be .*\"1s,5s,1m\".*, got \[1, 2\]"):
        app.task(backoff=[1, 2])(job)  # type: ignore[arg-type]


@pytest.mark.parametrize("url", [5, b"memory:", "foo:bar", "sqlite", "http:", "http://", "ftp://example.com"])
def test_a_url_that_opens_nothing_is_refused_at_the_start(url: Any) -> None:
    for opened in (duetime.App, duetime.connect, duetime.connect_async):
        with pytest.raises(InvalidSettings, match="URL"):
            opened(url)


@pytest.mark.parametrize("wrong", [None, 5, "shop.send", job, [job]])
def test_only_a_step_is_part_of_a_chain_a_group_or_a_batch(wrong: Any) -> None:
    app = duetime.App("memory:")
    task = app.task(job)
    uses: list[Callable[[], object]] = [
        lambda: duetime.chain(wrong),
        lambda: duetime.chain(task.step(), wrong),
        lambda: duetime.group(wrong),
        lambda: duetime.group(task.step()).then(wrong),
        lambda: app.batch("news").open().add(wrong),
    ]
    if wrong is not None:
        uses.append(lambda: app.batch("news", then=wrong))
    for use in uses:
        with pytest.raises(InvalidRequest, match=r"must be made by task\.step\(\.\.\.\), got "):
            use()
    app.close()


@pytest.mark.parametrize(
    ("misuse", "kind"),
    [
        (lambda app: app.cron(None)(job), InvalidRequest),
        (lambda app: app.cron(b"* * * * *")(job), InvalidRequest),
        (lambda app: app.cron("* * * * *", tz=5)(job), InvalidTime),
        (lambda app: app.cron("* * * * *", missed="some")(job), InvalidRequest),
        (lambda app: app.every("1h", missed=None)(job), InvalidRequest),
        (lambda app: app.every("1h", name=5)(job), InvalidRequest),
        (lambda app: app.on("failed")(None), InvalidRequest),
        (lambda app: app.use(None), InvalidRequest),
        (lambda app: app.after_commit("x"), InvalidRequest),
        (lambda app: app.task(job).bulk(None), InvalidRequest),
        (lambda app: app.task(job).bulk("ab"), InvalidRequest),
        (lambda app: app.output("mail", 5), InvalidId),
        (lambda app: app.progress("mail", 5), InvalidId),
        (lambda app: app.batch(5), InvalidRequest),
        (lambda app: app.batch("news").open().shift(None), InvalidTime),
        (lambda app: app.task(job).step("too many"), InvalidRequest),
        (lambda app: app.task(job).step(unknown=1), InvalidRequest),
    ],
)
def test_wrong_types_are_refused_where_they_are_given(misuse: Callable[[Any], object], kind: type[Exception]) -> None:
    with duetime.App("memory:") as app, pytest.raises(kind) as caught:
        misuse(app)
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    "misuse",
    [
        lambda: rate_limit("5", per="1s"),  # type: ignore[arg-type]
        lambda: rate_limit(2.5, per="1s"),  # type: ignore[arg-type]
        lambda: rate_limit(0, per="1s"),
        lambda: rate_limit(5, per=0),
        lambda: rate_limit(5, per="1s", key="account"),  # type: ignore[arg-type]
        lambda: throttle_exceptions(0, per="1m"),
        lambda: throttle_exceptions(3, per="0"),
        lambda: without_overlapping(key="account"),  # type: ignore[arg-type]
        lambda: debounce("1s", key="account"),  # type: ignore[arg-type]
        lambda: unique_until_start("1h", key="account"),  # type: ignore[arg-type]
        lambda: skip_if(True),  # type: ignore[arg-type]
        lambda: context("trace"),  # type: ignore[arg-type]
        lambda: encrypted("too short"),
        lambda: encrypted(5),  # type: ignore[arg-type]
    ],
)
def test_wrong_options_of_middleware_are_refused_where_it_is_made(misuse: Callable[[], object]) -> None:
    with pytest.raises(InvalidRequest, match=r"must be"):
        misuse()


@pytest.mark.parametrize(("done", "total"), [(float("nan"), 100), (float("inf"), 100), ("5", 100), (1, 0), (1, None)])
def test_a_wrong_progress_is_refused(done: Any, total: Any) -> None:
    app = duetime.App("memory:")

    @app.task
    def report() -> None:
        duetime.current_job().progress(done, total)

    with pytest.raises(InvalidRequest, match="progress"), inline(app):
        report.delay()


@pytest.mark.parametrize(
    "wrong", [None, 5, "memory:", {"default": 5}, {"default": {}}, {"default": {"uri": "memory:"}}]
)
def test_connections_are_urls_or_options_by_name(wrong: Any) -> None:
    with pytest.raises(InvalidSettings, match="connection"):
        duetime.connections.configure(wrong)


@pytest.mark.parametrize("url", ["sqlite", "redis", "postgres", "mysql", "group"], indirect=True)
@pytest.mark.parametrize(
    "field", [{"tries": 2.5}, {"tries": "3"}, {"delay_ms": 1.5}, {"ttl_ms": 1.5}, {"due_at": 1.5}, {"priority": "high"}]
)
def test_a_job_that_was_made_by_hand_is_checked_the_same_on_every_store(
    client: duetime.Client, field: dict[str, Any]
) -> None:
    queue = client.queue("default")
    wrong = NewJob("a", b"", **field)
    for jobs in ([wrong], [NewJob("b", b""), wrong]):
        with pytest.raises(InvalidRequest):
            queue.bulk(jobs)
    assert queue.size() == 0


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


def test_a_decorated_async_function_runs() -> None:
    app = duetime.App("memory:")
    ran: list[str] = []

    @app.task(name="send")
    @wrapped
    async def send(to: str) -> None:
        ran.append(to)

    with in_memory(app) as box:
        send.delay("ann")
        [one] = box.run()
    assert (ran, one.is_done) == (["ann"], True)


@pytest.mark.parametrize("pool", ["processes", "threads"])
async def test_a_backoff_that_breaks_later_does_not_stop_the_worker(
    start: Start, client: duetime.Client, sample: Any, tmp_path: Path, pool: str
) -> None:
    for _ in range(3):
        sample.breaks_later.delay()
    worker = start("-c", "1", "--pool", pool, "--backoff", "10ms")

    await worker.until_noted("failed", 3)
    sample.plain.delay("next")
    await worker.until_noted("ran", key="next")
    worker.signal(signal.SIGTERM)
    assert worker.end() == (0, "interrupted")
    assert "backoff_failed" in worker.err.read_text()
