"""A consumer of ours in a process of its own, so that a test can kill it.

    python python_worker.py laravel URL LOG PREFIX RETRY_AFTER   appends "N ATTEMPT EARLY" for each job; EARLY is 0 or 1
    python python_worker.py redisson URL LOG QUEUE               appends each value

It prints "working" when it begins.
"""

import os
import sys
import time

from duetime.bridges.laravel import LaravelJob, connect
from duetime.bridges.laravel_worker import LaravelWorker
from duetime.bridges.redisson import Redisson

kind, url, log, *rest = sys.argv[1:]
file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def note(job: LaravelJob) -> None:
    early = int(time.time() < job.data["due"])
    os.write(file, f"{job.data['n']} {job.attempts} {early}\n".encode())


print("working", flush=True)
if kind == "laravel":
    queues = connect(url, prefix=rest[0], retry_after=rest[1])
    LaravelWorker(queues, {"Job": note}, tries=5).run()
else:
    with Redisson(url) as redisson:
        queue = redisson.blocking_queue(rest[0])
        while True:
            os.write(file, f"{queue.take()}\n".encode())
