"""The program that the tests' workers run: `duetime work tests.worker.sample:app`.

It appends a line of JSON to SAMPLE_LOG for every event and whatever its tasks note; one write each, so that lines of
several processes do not mix.
"""

import asyncio
import json
import logging
import os
import signal
import time
from pathlib import Path
from typing import Any

import msgspec

import duetime
from duetime.worker import daemon
from duetime.worker.events import NAMES, TaskEvent
from duetime.worker.runs import Failure, JobInfo

app = duetime.App(os.environ["DUETIME_URL"], token=os.environ.get("SAMPLE_TOKEN"))
LOG = os.open(os.environ["SAMPLE_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
logging.getLogger("sample.talks").addHandler(duetime.JobLogHandler())
HELD: list[bytearray] = []
daemon.REPORT_S = float(os.environ.get("SAMPLE_REPORT_S", daemon.REPORT_S))


def note(kind: str, **fields: Any) -> None:
    os.write(LOG, (json.dumps({"kind": kind, "pid": os.getpid(), "parent": os.getppid(), **fields}) + "\n").encode())


def hear(event: TaskEvent) -> None:
    job = {"id": event.job.id, "attempt": event.job.attempt, "name": event.job.name} if event.job else {}
    failure = {"failure": event.failure.kind} if event.failure else {}
    note(event.name, reason=event.reason, status=event.status, delay_ms=event.delay_ms, **job, **failure)


for name in NAMES:
    if name not in ("looping", "popping", "queueing", "queued"):
        app.on(name)(hear)


@app.task
def plain(key: str) -> None:
    note("ran", key=key)


@app.task
async def gentle(key: str) -> None:
    await asyncio.sleep(0)
    note("ran", key=key)


@app.task(tries=2, backoff="0")
def boom() -> None:
    raise ValueError("no")


RAISED = {
    "text that UTF-8 cannot encode": ValueError("no such file: \udcff"),
    "deep": RecursionError("too deep"),
    "not UTF-8": UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    "not JSON": msgspec.DecodeError("malformed"),
    "cancelled": asyncio.CancelledError(),
    "base": BaseException("all else"),
}


@app.task(tries=1)
def raises(what: str) -> None:
    raise RAISED[what]


@app.task(tries=1)
async def raises_gently(what: str) -> None:
    raise RAISED[what]


@boom.failed
def boom_failed(job: JobInfo, failure: Failure) -> None:
    note("hook", id=job.id, failure=failure.kind)


class BreaksLater:
    def delay_ms(self, failures: int) -> int:
        return {1: 0}[failures]


@app.task(tries=3, backoff=BreaksLater())
def breaks_later() -> None:
    raise ValueError("no")


@app.task(tries=10, max_exceptions=2, backoff="0")
def booms() -> None:
    raise ValueError("no")


@app.task(tries=3)
def again() -> None:
    if duetime.current_job().attempt == 1:
        raise duetime.Retry(after="10ms")


@app.task(tries=1)
def never_again() -> None:
    raise duetime.Retry(after="10ms")


@app.task
def cancelled() -> None:
    raise duetime.Cancel("nobody wants it")


@app.task
def hopeless() -> None:
    raise duetime.Fail("no such address")


@app.task(tries=2, backoff="10ms", timeout="200ms")
def slow() -> None:
    time.sleep(20)


@app.task(tries=2, backoff="10ms", timeout="200ms")
async def slow_gently() -> None:
    await asyncio.sleep(20)


@app.task(tries=1, timeout="200ms")
def stubborn() -> None:
    """Does not listen when its time is over."""
    note("stubborn")
    while True:
        try:
            time.sleep(20)
        except BaseException:
            continue


@app.task(tries=1, retry_until="3s", backoff="100ms")
def until_then() -> None:
    raise ValueError("not yet")


@app.task
def gate(key: str, path: str) -> None:
    """Runs until the file is there."""
    note("began", key=key)
    while not Path(path).exists():
        time.sleep(0.01)
    note("ran", key=key)


@app.task(tries=2)
def polite(key: str) -> None:
    """Saves its place when its worker wants to stop."""
    note("began", key=key)
    while not duetime.current_job().stopping:
        time.sleep(0.01)
    note("saved", key=key)
    raise duetime.Retry(after="1h")


@app.task(tries=2)
async def polite_gently(key: str) -> None:
    note("began", key=key)
    while not duetime.current_job().stopping:  # noqa: ASYNC110  a plain question, as users ask it
        await asyncio.sleep(0.01)
    note("saved", key=key)
    raise duetime.Retry(after="1h")


@app.task(tries=5)
def work(key: int) -> None:
    note("began", key=key)
    time.sleep(0.005)
    note("ran", key=key)


@app.task(tries=1)
def suicide() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@app.task
def grow(megabytes: int) -> None:
    HELD.append(bytearray(os.urandom(1024) * 1024 * megabytes))
    note("grown")


@app.task(timeout="1s")
def extended() -> None:
    job = duetime.current_job()
    job.progress(2, 5)
    job.extend("60s")
    time.sleep(1.2)
    note("ran", key="extended", queue=job.queue)


@app.task(queue="other")
def elsewhere(key: str) -> None:
    note("ran", key=key)


@app.task
def pushes(key: str) -> None:
    plain.delay(key)


@app.task
def large(text: str) -> None:
    note("ran", key=len(text))


@app.task
def shows_headers() -> None:
    note("headers", headers=dict(duetime.current_job().headers))


@app.task
async def shows_headers_gently() -> None:
    note("headers", headers=dict(duetime.current_job().headers))


@app.task(result_ttl="1h")
def adds(left: int, right: int) -> list[int]:
    return [left, right]


@app.task(result_ttl="1h")
async def adds_gently(left: int, right: int) -> list[int]:
    return [left, right]


@app.task(result_ttl="1h")
def large_result(size: int) -> str:
    return "x" * size


@app.task(tries=1, result_ttl="1h")
def fails_with(text: str) -> None:
    raise LookupError(text)


@app.task(tries=5, result_ttl="1h")
def gated_result(path: str) -> int:
    note("began")
    while not Path(path).exists():
        time.sleep(0.01)
    return duetime.current_job().attempt


@app.task(tries=9, backoff="0")
def first_step(key: str) -> list[str]:
    note("step", key=key, number=1)
    return [key]


@app.task(tries=9, backoff="0", result_ttl="1h")
def next_step(keys: list[str], number: int) -> list[str]:
    note("step", key=keys[0], number=number)
    return [*keys, str(number)]


@app.task(tries=9, queue="other", result_ttl="1h")
async def other_step(keys: list[str], number: int) -> list[str]:
    note("step", key=keys[0], number=number)
    return [*keys, f"other {number}"]


@app.task(tries=9)
def member(number: int) -> int:
    note("member", number=number)
    return number


@app.task(tries=9, queue="other")
async def other_member(number: int) -> int:
    note("member", number=number)
    return number


@app.task(tries=9, result_ttl="1h")
def total(numbers: list[int]) -> int:
    note("callback", id=duetime.current_job().id)
    return sum(numbers)


@app.task(tries=9, result_ttl="1h")
def all_done(key: str) -> str:
    note("callback", id=duetime.current_job().id, key=key)
    return key


@app.task(timeout="60s")
def talks(folder: str) -> None:
    """Logs three lines, by a logger and without one, and waits until it may end."""
    job = duetime.current_job()
    job.log("row", 1, "of", 3)
    job.log("at https://ann:secret@example.com/rows\nsecond\x1b[31m line")
    logging.getLogger("sample.talks").warning("a record")
    note("logged", id=job.id)
    while not (Path(folder) / "end").exists():
        time.sleep(0.01)


@app.task(timeout="60s")
def floods(folder: str) -> None:
    """Logs short lines as fast as it can until it may end."""
    job = duetime.current_job()
    while not (Path(folder) / "end").exists():
        for _ in range(10_000):
            job.log("x")
