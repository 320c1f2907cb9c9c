"""Tasks of the other queues, as a module that their own workers import. Runs in `.venv-bench`.

    BENCH_PEER=celery BENCH_REDIS=... BENCH_LOG=... python -c "import work_peer; work_peer.main()" noop|nap|late COUNT

pushes tasks; the worker of the same peer is started on this module by its own command. A task appends one byte to the
log, so that its size counts what is done; `late` appends a line with its lateness in milliseconds. Every peer is set up
as its documentation shows, without results; celery's `result` keeps them, and `chain` pushes chains of ten steps that
pass them on; `group` pushes groups of a thousand with a callback that gets all results.
"""

import asyncio
import datetime
import os
import sys
import time
from urllib.parse import urlsplit

PEER = os.environ["BENCH_PEER"]
URL = os.environ["BENCH_REDIS"]
LOG = os.open(os.environ["BENCH_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
NAP_S = 0.01
AHEAD_S = 8.0
OVER_S = 5.0
CHAIN = 10
GROUP = 1000


def noop() -> None:
    os.write(LOG, b".")


def nap() -> None:
    time.sleep(NAP_S)
    os.write(LOG, b".")


def late(due: float) -> None:
    os.write(LOG, b"%.1f\n" % ((time.time() - due) * 1000))


def result(number: int) -> int:
    os.write(LOG, b".")
    return number + 1


def total(numbers: list[int]) -> int:
    os.write(LOG, b".")
    return sum(numbers)


async def noop_async(*_: object) -> None:
    os.write(LOG, b".")


async def nap_async(*_: object) -> None:
    await asyncio.sleep(NAP_S)
    os.write(LOG, b".")


def redis_settings():
    from arq.connections import RedisSettings

    parts = urlsplit(URL)
    return RedisSettings(host=parts.hostname, port=parts.port)


if PEER == "celery":
    from celery import Celery

    app = Celery("work_peer", broker=URL, backend=URL)
    app.conf.update(task_ignore_result=True, worker_hijack_root_logger=False)
    tasks = {work.__name__: app.task(work, name=work.__name__) for work in (noop, nap, late)}
    for work in (result, total):
        tasks[work.__name__] = app.task(work, name=work.__name__, ignore_result=False)
elif PEER == "dramatiq":
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker

    dramatiq.set_broker(RedisBroker(url=URL))
    tasks = {work.__name__: dramatiq.actor(work, actor_name=work.__name__) for work in (noop, nap, late)}
elif PEER == "huey":
    from huey import RedisHuey

    app = RedisHuey("bench", url=URL, results=False)
    tasks = {work.__name__: app.task()(work) for work in (noop, nap, late)}
elif PEER == "arq":

    async def late_arq(context: object, due: float) -> None:
        late(due)

    class WorkerSettings:
        functions = (noop_async, nap_async, late_arq)
        redis_settings = redis_settings()
        max_jobs = int(os.environ.get("BENCH_CONCURRENCY", "4"))
        keep_result = 0
        poll_delay = 0.1
elif PEER == "saq":
    from saq import Queue

    queue = Queue.from_url(URL)

    async def noop_saq(context: object) -> None:
        await noop_async()

    async def nap_saq(context: object) -> None:
        await nap_async()

    async def late_saq(context: object, *, due: float) -> None:
        late(due)

    settings = {
        "queue": queue,
        "functions": [noop_saq, nap_saq, late_saq],
        "concurrency": int(os.environ.get("BENCH_CONCURRENCY", "4")),
    }
elif PEER == "taskiq":
    from taskiq import TaskiqScheduler
    from taskiq_redis import ListQueueBroker, ListRedisScheduleSource

    broker = ListQueueBroker(URL)
    source = ListRedisScheduleSource(URL)
    scheduler = TaskiqScheduler(broker, [source])

    @broker.task(task_name="late")
    async def late_taskiq(due: float) -> None:
        late(due)

    tasks = {
        "noop": broker.task(task_name="noop")(noop_async),
        "nap": broker.task(task_name="nap")(nap_async),
    }


def due_times(count: int) -> list[float]:
    start = time.time() + AHEAD_S
    return [start + OVER_S * number / count for number in range(count)]


def push_celery(kind: str, count: int) -> None:
    if kind == "result":
        for number in range(count):
            tasks["result"].delay(number)
        return
    if kind == "chain":
        from celery import chain

        one = tasks["result"]
        for number in range(count // CHAIN):
            chain(one.s(number), *(one.s() for _ in range(CHAIN - 1))).apply_async()
        return
    if kind == "group":
        from celery import chord

        for _ in range(count // (GROUP + 1)):
            chord([tasks["result"].s(number) for number in range(GROUP)])(tasks["total"].s())
        return
    for due in due_times(count):
        if kind == "late":
            tasks[kind].apply_async((due,), eta=datetime.datetime.fromtimestamp(due, datetime.UTC))
        else:
            tasks[kind].apply_async()


def push_rq(kind: str, count: int) -> None:
    from redis import Redis
    from rq import Queue as RqQueue

    rq = RqQueue("bench", connection=Redis.from_url(URL), default_result_ttl=0)
    if kind == "late":
        for due in due_times(count):
            rq.enqueue_at(datetime.datetime.fromtimestamp(due, datetime.UTC), "work_peer.late", due, result_ttl=0)
        return
    for at in range(0, count, 1000):
        rq.enqueue_many([RqQueue.prepare_data(f"work_peer.{kind}", result_ttl=0) for _ in range(min(1000, count - at))])


def push_dramatiq(kind: str, count: int) -> None:
    for due in due_times(count):
        if kind == "late":
            tasks[kind].send_with_options(args=(due,), delay=max(0, int((due - time.time()) * 1000)))
        else:
            tasks[kind].send()


def push_huey(kind: str, count: int) -> None:
    for due in due_times(count):
        if kind == "late":
            tasks[kind].schedule((due,), eta=datetime.datetime.fromtimestamp(due))
        else:
            tasks[kind]()


async def push_arq(kind: str, count: int) -> None:
    from arq import create_pool

    pool = await create_pool(redis_settings())
    for due in due_times(count):
        if kind == "late":
            until = datetime.datetime.fromtimestamp(due, datetime.UTC)
            await pool.enqueue_job("late_arq", due, _defer_until=until)
        else:
            await pool.enqueue_job(f"{kind}_async")


async def push_saq(kind: str, count: int) -> None:
    await queue.connect()
    for due in due_times(count):
        if kind == "late":
            await queue.enqueue("late_saq", due=due, scheduled=int(due))
        else:
            await queue.enqueue(f"{kind}_saq")


async def push_taskiq(kind: str, count: int) -> None:
    await broker.startup()
    await source.startup()
    for due in due_times(count):
        if kind == "late":
            await late_taskiq.schedule_by_time(source, datetime.datetime.fromtimestamp(due, datetime.UTC), due)
        else:
            await tasks[kind].kiq()


def main() -> None:
    answer = globals()[f"push_{PEER}"](sys.argv[1], int(sys.argv[2]))
    if answer is not None:
        asyncio.run(answer)
