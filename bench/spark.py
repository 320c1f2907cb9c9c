"""A Parquet table into one Redis: schedule() on local[2], beside the SDK's bulk push and redis-cli --pipe.

    make bench ARGS=spark        or with sizes: make bench ARGS="spark --jobs 100000 --rounds 1 --live-rate 20000"

Jobs of 100 bytes with 26-character ids, due at random times of the next 30 days. `redis-cli --pipe` sends a prepared
file of HSET + ZADD with the same keys, in the table's order: no check, no mark, no atomic step. "push phase" is
schedule()'s second Spark job, "total" all of it from the Parquet files on; the session is open and one small load has
been done before. Then the lateness of live jobs in another queue of the same Redis while a load runs, with and without
maxJobsPerSecond.
"""

import argparse
import asyncio
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import redis
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import duetime
from bench.core_parts.setting import a_redis, cpu_seconds, meter
from bench.report import interleave, median, number, percentile, ratio, spread, table
from duetime.client import calls
from duetime.model.job import IfExists, NewJob
from duetime.model.names import Queue
from duetime.spark import schedule
from duetime.spark.session import open_session

QUEUE = Queue("bench", "load")
DAYS_30_MS = 30 * 86_400_000
LIVE_EVERY_S = 0.01
LIVE_DELAY_MS = 100


def write_table(spark: SparkSession, path: Path, jobs: int) -> None:
    now_ms = int(time.time() * 1000) + 3_600_000
    spark.range(0, jobs, 1, 4).select(
        F.format_string("member-%019d", "id").alias("id"),
        F.timestamp_millis(F.lit(now_ms) + F.pmod(F.xxhash64("id"), F.lit(DAYS_30_MS))).alias("due_at"),
        F.substring(F.concat(F.sha2(F.col("id").cast("string"), 256), F.sha2(F.concat(F.lit("b"), "id"), 256)), 1, 100)
        .cast("binary")
        .alias("body"),
    ).write.parquet(str(path))


def columns(path: Path) -> Iterator[tuple[pa.Array, pa.Array, pa.Array]]:
    for file in sorted(path.glob("*.parquet")):
        for batch in pq.ParquetFile(file).iter_batches(100_000):
            due = batch.column("due_at").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
            yield batch.column("id"), pc.divide(due, 1000), batch.column("body")


def write_pipe_file(path: Path, target: Path) -> None:
    """HSET and ZADD per job, as bytes that redis-cli only has to send."""

    def bulk(values: pa.Array) -> tuple[object, ...]:
        return "$", pc.binary_length(values).cast(pa.string()), "\r\n", values, "\r\n"

    prefix = f"dt:{{00}}:{QUEUE}"
    jobs, wait = f"{prefix}:jobs", f"{prefix}:wait:2"
    with target.open("wb") as file:
        for ids, due, bodies in columns(path):
            values = pc.binary_join_element_wise("12345678", bodies.cast(pa.string()), "")
            hset = ("*4\r\n$4\r\nHSET\r\n", f"${len(jobs)}\r\n{jobs}\r\n", *bulk(ids), *bulk(values))
            times = due.cast(pa.string())
            zadd = ("*4\r\n$4\r\nZADD\r\n", f"${len(wait)}\r\n{wait}\r\n", *bulk(times), *bulk(ids))
            whole = pc.binary_join_element_wise(*hset, *zadd, "")
            file.write(memoryview(whole.buffers()[2]))


def redis_cli_pipe(server: redis.Redis, port: int, file: Path, jobs: int) -> float:
    server.flushall()
    started = time.perf_counter()
    with file.open("rb") as source:
        subprocess.run(
            ["redis-cli", "-p", str(port), "--pipe"], stdin=source, check=True, stdout=subprocess.DEVNULL, timeout=900
        )
    return jobs / (time.perf_counter() - started)


def sdk_bulk(server: redis.Redis, url: str, path: Path, jobs: int) -> float:
    server.flushall()
    started = time.perf_counter()
    with duetime.connect(url, namespace=QUEUE.namespace) as client:
        for ids, due, bodies in columns(path):
            rows = zip(ids.to_pylist(), due.to_pylist(), bodies.to_pylist(), strict=True)
            made = (NewJob(job_id, body, due_at=due_at) for job_id, due_at, body in rows)
            for call in calls.bulk(QUEUE, made, IfExists.KEEP):
                client.send(call)
    return jobs / (time.perf_counter() - started)


class Load:
    """schedule() on a clean Redis and a clean lake, and what Redis spent on it."""

    def __init__(self, spark: SparkSession, server: redis.Redis, url: str, folder: Path) -> None:
        self.spark, self.server, self.url, self.lake = spark, server, url, folder / "lake"
        self.push_rates: list[float] = []
        self.busy: list[float] = []

    def run(self, path: Path, jobs: int, *, rate: float = 0) -> float:
        """The total rate. The push phase's rate, and Redis's share of a core in the total, are kept aside."""
        self.clear()
        return self.load(path, jobs, rate=rate)

    def clear(self) -> None:
        self.server.flushall()
        shutil.rmtree(self.lake, ignore_errors=True)

    def load(self, path: Path, jobs: int, *, rate: float = 0) -> float:
        cpu, started = cpu_seconds(self.server), time.perf_counter()
        done = schedule(
            self.spark.read.parquet(str(path)),
            url=self.url,
            namespace=QUEUE.namespace,
            queue=QUEUE.name,
            batch="bench",
            lake=str(self.lake),
            max_jobs_per_second=rate,
        )
        elapsed = time.perf_counter() - started
        assert done.accepted == jobs, done
        self.push_rates.append(jobs / done.seconds)
        self.busy.append((cpu_seconds(self.server) - cpu) / done.seconds)
        return jobs / elapsed

    def print_lateness(self, path: Path, jobs: int, rate: float) -> None:
        """Of live jobs: alone, beside a load at full speed, and beside one at `rate` jobs a second."""
        late: dict[str, list[float]] = {}
        for what, work in {
            "no load": lambda: time.sleep(3),
            "load without a cap": lambda: self.load(path, jobs),
            f"load at {number(rate)} jobs/s": lambda: self.load(path, jobs, rate=rate),
        }.items():
            self.clear()
            late[what] = lateness_during(self.url, work)
        print("\nLateness of live jobs (ms), pushed every 10 ms and due 100 ms later:")
        lines = [(what, len(ms), *(percentile(ms, p) for p in (50, 99, 100))) for what, ms in late.items() if ms]
        print(table(["while", "jobs", "p50", "p99", "max"], lines))


def lateness_during(url: str, load: Callable[[], object]) -> list[float]:
    """Milliseconds by which live jobs of another queue came late while the load ran."""
    late: list[float] = []
    ended = threading.Event()

    async def live() -> None:
        async with duetime.connect_async(url, namespace="live") as client:
            queue = client.queue("live")

            async def consume() -> None:
                while not ended.is_set():
                    for delivery in await client.reserve(["live"], limit=100, wait="200ms"):
                        late.append(time.time() * 1000 - delivery.due_at)
                        await client.ack(delivery)

            async def produce() -> None:
                while not ended.is_set():
                    await queue.push(b"live", due_at=int(time.time() * 1000) + LIVE_DELAY_MS)
                    await asyncio.sleep(LIVE_EVERY_S)

            await asyncio.gather(consume(), produce())

    thread = threading.Thread(target=asyncio.run, args=(live(),))
    thread.start()
    try:
        load()
    finally:
        ended.set()
        thread.join()
    return late


def peak_memory_mb() -> dict[str, float]:
    """The most that Spark's JVM, and the largest of its Python workers, ever held."""
    peaks = {"JVM": 0.0, "Python worker": 0.0}
    for pid in descendants(os.getpid()):
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        held = next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0.0)
        kind = "JVM" if "Name:\tjava" in status else "Python worker"
        peaks[kind] = max(peaks[kind], held) if "redis" not in status.split("\n", 1)[0] else peaks[kind]
    return peaks


def descendants(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            yield int(child)
            yield from descendants(int(child))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench spark")
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--live-rate", type=float, default=50_000, help="maxJobsPerSecond of the capped load; 0 leaves lateness out"
    )
    given = parser.parse_args()
    jobs = given.jobs

    spark = open_session("bench", master="local[2]")
    with a_redis() as server, tempfile.TemporaryDirectory() as name, meter(server) as client:
        folder = Path(name)
        source, small, pipe_file = folder / "table", folder / "small", folder / "pipe"
        write_table(spark, source, jobs)
        write_table(spark, small, min(jobs, 20_000))
        write_pipe_file(source, pipe_file)
        load = Load(spark, client, server.url, folder)
        load.run(small, min(jobs, 20_000))
        load.push_rates.clear()
        load.busy.clear()

        contenders: dict[str, Callable[[], float]] = {
            "redis-cli --pipe": lambda: redis_cli_pipe(client, server.port, pipe_file, jobs),
            "schedule(), total": lambda: load.run(source, jobs),
            "SDK bulk": lambda: sdk_bulk(client, server.url, source, jobs),
        }
        results = interleave(contenders, rounds=given.rounds, warmups=0)
        results["schedule(), push phase"] = list(load.push_rates)
        pipe = median(results["redis-cli --pipe"])
        rows = [
            (way, median(rates), spread(rates), ratio(median(rates), pipe))
            for way, rates in sorted(results.items(), key=lambda item: -median(item[1]))
        ]
        print(table(["way", "jobs/s", "spread", "of --pipe"], rows))
        print(f"\nRedis was busy for {median(load.busy):.0%} of a core's time in the push phase")
        print("goals: push phase 0.90x, total 0.60x")
        print("; ".join(f"a {what} held at most {held:,.0f} MB" for what, held in peak_memory_mb().items()))

        if given.live_rate:
            load.print_lateness(source, jobs, given.live_rate)
    spark.stop()
