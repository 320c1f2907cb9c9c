"""Delayed pushes by other queues' own clients: one number (jobs/s), printed as JSON. Runs in `.venv-bench`.

    python sdk_peer.py PEER one|many|take|work JOBS REDIS_URL

`one` is one caller, one job after the other; `many` is 64 callers at once: threads for blocking clients, tasks for
asyncio ones; `take` (huey alone) takes jobs one after the other, and `work` stores a result for each, too. Each peer
pushes a job of 100 bytes due in an hour in the way its own documentation shows.
"""

import asyncio
import datetime
import json
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

BODY = "x" * 100
HOUR_S = 3600
CALLERS = 64


def task_body(body: str) -> None:
    """What the jobs would do."""


def timed(push: Callable[[], object], mode: str, jobs: int) -> float:
    push()
    if mode == "one":
        started = time.perf_counter()
        for _ in range(jobs):
            push()
        return jobs / (time.perf_counter() - started)
    with ThreadPoolExecutor(CALLERS) as threads:
        list(threads.map(lambda _: push(), range(CALLERS)))
        started = time.perf_counter()
        list(threads.map(lambda _: push(), range(jobs)))
        return jobs / (time.perf_counter() - started)


async def timed_async(push: Callable[[], Awaitable[object]], mode: str, jobs: int) -> float:
    await push()
    left = iter(range(jobs))

    async def caller() -> None:
        for _ in left:
            await push()

    started = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(1 if mode == "one" else CALLERS)))
    return jobs / (time.perf_counter() - started)


def celery(mode: str, jobs: int, url: str) -> float:
    from celery import Celery

    app = Celery("bench", broker=url)
    app.conf.update(task_ignore_result=True, broker_pool_limit=CALLERS)
    task = app.task(task_body, name="bench.task")
    return timed(lambda: task.apply_async((BODY,), countdown=HOUR_S), mode, jobs)


def rq(mode: str, jobs: int, url: str) -> float:
    from redis import Redis
    from rq import Queue

    queue = Queue("bench", connection=Redis.from_url(url))
    delay = datetime.timedelta(seconds=HOUR_S)
    return timed(lambda: queue.enqueue_in(delay, "bench.task", BODY), mode, jobs)


def dramatiq(mode: str, jobs: int, url: str) -> float:
    import dramatiq as library
    from dramatiq.brokers.redis import RedisBroker

    library.set_broker(RedisBroker(url=url))
    actor = library.actor(task_body, actor_name="bench")
    return timed(lambda: actor.send_with_options(args=(BODY,), delay=HOUR_S * 1000), mode, jobs)


def huey(mode: str, jobs: int, url: str) -> float:
    from huey import RedisHuey

    app = RedisHuey("bench", url=url, results=False)
    task = app.task()(task_body)
    if mode in {"take", "work"}:
        for _ in range(jobs + 1):
            task(BODY)
        return timed(app.dequeue if mode == "take" else lambda: app.put(app.dequeue().id, True), "one", jobs)
    return timed(lambda: task.schedule((BODY,), delay=HOUR_S), mode, jobs)


def arq(mode: str, jobs: int, url: str) -> float:
    async def main() -> float:
        from arq import create_pool
        from arq.connections import RedisSettings

        parts = urlsplit(url)
        pool = await create_pool(RedisSettings(host=parts.hostname, port=parts.port))
        return await timed_async(lambda: pool.enqueue_job("bench", BODY, _defer_by=HOUR_S), mode, jobs)

    return asyncio.run(main())


def saq(mode: str, jobs: int, url: str) -> float:
    async def main() -> float:
        from saq import Queue

        queue = Queue.from_url(url)
        await queue.connect()
        return await timed_async(
            lambda: queue.enqueue("bench", body=BODY, scheduled=int(time.time()) + HOUR_S), mode, jobs
        )

    return asyncio.run(main())


def taskiq(mode: str, jobs: int, url: str) -> float:
    async def main() -> float:
        from taskiq_redis import ListQueueBroker, ListRedisScheduleSource

        broker = ListQueueBroker(url)
        source = ListRedisScheduleSource(url)
        await broker.startup()
        await source.startup()

        @broker.task(task_name="bench")
        async def task(body: str) -> None: ...

        due = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=HOUR_S)
        return await timed_async(lambda: task.schedule_by_time(source, due, BODY), mode, jobs)

    return asyncio.run(main())


if __name__ == "__main__":
    peer, mode, jobs, url = sys.argv[1:]
    print(json.dumps(globals()[peer](mode, int(jobs), url)))
