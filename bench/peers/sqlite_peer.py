"""huey and litequeue on a SQLite file: one number per call, printed as JSON. Runs in `.venv-bench`.

python sqlite_peer.py PEER TASK JOBS SYNCHRONOUS FOLDER
"""

import json
import sys
import threading
import time
from pathlib import Path

BODY = "x" * 100


def huey_storage(folder: Path, synchronous: str):
    from huey import SqliteHuey

    app = SqliteHuey("bench", filename=str(folder / "huey.db"), results=False)
    # Its own option `fsync=False` is OFF, which is less than NORMAL.
    app.storage.conn.execute(f"PRAGMA synchronous = {synchronous}")
    return app


def huey_push(jobs: int, synchronous: str, folder: Path) -> float:
    app = huey_storage(folder, synchronous)
    task = app.task()(lambda body: None)
    started = time.perf_counter()
    for _ in range(jobs):
        task.schedule((BODY,), delay=3600)
    return jobs / (time.perf_counter() - started)


def huey_take(jobs: int, synchronous: str, folder: Path) -> float:
    app = huey_storage(folder, synchronous)
    task = app.task()(lambda body: None)
    for _ in range(jobs):
        task(BODY)
    started = time.perf_counter()
    taken = 0
    while app.dequeue() is not None:
        taken += 1
    assert taken == jobs
    return jobs / (time.perf_counter() - started)


def huey_work(jobs: int, synchronous: str, folder: Path) -> float:
    app = huey_storage(folder, synchronous)
    task = app.task()(lambda body: None)
    for _ in range(jobs):
        task(BODY)
    started = time.perf_counter()
    for _ in range(jobs):
        app.put(app.dequeue().id, True)
    return jobs / (time.perf_counter() - started)


def huey_lateness(jobs: int, synchronous: str, folder: Path) -> list[float]:
    app = huey_storage(folder, synchronous)
    late: list[float] = []
    done = threading.Event()

    @app.task()
    def job(due: float) -> None:
        late.append((time.time() - due) * 1000)
        if len(late) == jobs:
            done.set()

    start = time.time() + 1
    for number in range(jobs):
        due = start + 3 * number / jobs
        job.schedule((due,), delay=due - time.time())
    consumer = app.create_consumer(workers=1, initial_delay=0.001, max_delay=0.01, scheduler_interval=1)
    consumer.start()
    done.wait(30)
    consumer.stop(graceful=False)
    return late


def litequeue_queue(folder: Path, synchronous: str):
    from litequeue import LiteQueue

    queue = LiteQueue(str(folder / "lite.db"))
    queue.conn.execute(f"PRAGMA synchronous = {synchronous}")
    return queue


def litequeue_push(jobs: int, synchronous: str, folder: Path) -> float:
    queue = litequeue_queue(folder, synchronous)
    started = time.perf_counter()
    for _ in range(jobs):
        queue.put(BODY)
    return jobs / (time.perf_counter() - started)


def litequeue_take(jobs: int, synchronous: str, folder: Path) -> float:
    queue = litequeue_queue(folder, synchronous)
    for _ in range(jobs):
        queue.put(BODY)
    started = time.perf_counter()
    for _ in range(jobs):
        queue.done(queue.pop().message_id)
    return jobs / (time.perf_counter() - started)


def main() -> None:
    peer, task, jobs, synchronous, folder = sys.argv[1:]
    result = globals()[f"{peer}_{task}"](int(jobs), synchronous, Path(folder))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
