"""Our side of bench/peers/work_peer.py: the same tasks, run by `duetime work`."""

import asyncio
import os
import sys
import time

import duetime

LOG = os.open(os.environ["BENCH_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
NAP_S = 0.01
AHEAD_S = 8.0
OVER_S = 5.0
CHAIN = 10
GROUP = 1000

app = duetime.App(os.environ["BENCH_REDIS"])


@app.task(queue="bench")
def noop() -> None:
    os.write(LOG, b".")


@app.task(queue="bench")
def nap() -> None:
    time.sleep(NAP_S)
    os.write(LOG, b".")


@app.task(queue="bench-async")
async def noop_async() -> None:
    os.write(LOG, b".")


@app.task(queue="bench-async")
async def nap_async() -> None:
    await asyncio.sleep(NAP_S)
    os.write(LOG, b".")


@app.task(queue="bench", result_ttl="1d")
def result(number: int) -> int:
    os.write(LOG, b".")
    return number + 1


@app.task(queue="bench-async", result_ttl="1d")
async def result_async(number: int) -> int:
    os.write(LOG, b".")
    return number + 1


@app.task(queue="bench", result_ttl="1d")
def total(numbers: list[int]) -> int:
    os.write(LOG, b".")
    return sum(numbers)


@app.task(queue="bench-async", result_ttl="1d")
async def total_async(numbers: list[int]) -> int:
    os.write(LOG, b".")
    return sum(numbers)


@app.task(queue="bench")
def late(due: float) -> None:
    os.write(LOG, b"%.1f\n" % ((time.time() - due) * 1000))


@app.task(queue="bench-async")
async def late_async(due: float) -> None:
    os.write(LOG, b"%.1f\n" % ((time.time() - due) * 1000))


def push(name: str, count: int) -> None:
    kind, _, way = name.partition("_")
    if kind == "chain":
        one = result_async if way else result
        with app:
            for number in range(count // CHAIN):
                duetime.chain(one.step(number), *[one.step(duetime.PREVIOUS)] * (CHAIN - 1)).delay()
        return
    if kind == "group":
        one, callback = (result_async, total_async) if way else (result, total)
        with app:
            for _ in range(count // (GROUP + 1)):
                members = [one.step(number) for number in range(GROUP)]
                duetime.group(*members).then(callback.step(duetime.PREVIOUS)).delay()
        return
    task = app.tasks[f"{noop.name.rpartition('.')[0]}.{name}"]
    with app:
        start = time.time() + AHEAD_S
        for number in range(count):
            if name.startswith("late"):
                due = start + OVER_S * number / count
                task.at(int(due * 1000), due)
            elif kind == "result":
                task.delay(number)
            else:
                task.delay()


if __name__ == "__main__":
    push(sys.argv[1], int(sys.argv[2]))
