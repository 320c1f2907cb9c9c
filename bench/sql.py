"""The SQL stores beside procrastinate, pgqueuer, chancy and Laravel: pushes, reserve + ack, lateness, dead rows.

    make bench ARGS=sql          or in full: make bench ARGS="sql --jobs 2000 --behind 1000000 --through 1000000"
    TMPDIR=/dev/shm make bench ARGS=sql          the same without the disk's time: syncs cost nothing there

One PostgreSQL with durable commits (fsync, synchronous_commit and autovacuum on) serves everybody, each in a database
of its own; MariaDB and SQLite commit durably, too. Bodies have 100 bytes. All rates are measured twice: on empty
tables, and with `--behind` delayed jobs in them. Peers do what they can: procrastinate takes jobs one by one, none of
them has a timer. Laravel's database queue, where Debian's packages of it are installed, pops jobs one by one, on the
same servers; it has no tasks at once, no timer and no part in the dead rows. Bare statements are the floor: psycopg
inserts, updates and deletes the same bytes by id in a table with one index, and neither orders nor counts anything.
Whatever a contender does ends after `--seconds`, and what is found is printed at once; only the tables are filled
without a limit.
"""

import argparse
import asyncio
import json
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import psycopg

from bench.report import median, number, peer_python, percentile, ratio, spread, table
from duetime.engine import Engine
from duetime.model.ids import IdMaker
from duetime.model.job import NewJob
from duetime.model.names import Queue
from duetime.stores.open import open_store
from tests.plugins.database_server import servers
from tests.plugins.mysql_server import MysqlServer
from tests.plugins.postgres_server import PostgresServer

BODY = b"x" * 100
QUEUE = Queue("bench", "jobs")
DAY_MS = 86_400_000
STEP, TAKE, CALLERS = 500, 100, 64
LATE_JOBS = 500
"""Of fewer, the 99th percentile is the one or two worst."""
PEERS = ("procrastinate", "pgqueuer", "chancy")
LARAVEL = ("Laravel, PostgreSQL", "Laravel, MariaDB")
FLOOR = "bare statements"
LARAVEL_PEER = Path(__file__).parent / "peers" / "laravel_queue.php"
LARAVEL_PACKAGES = "php-cli php-illuminate-queue php-illuminate-database php-pgsql php-mysql"
PEER = Path(__file__).parent / "peers" / "sql_peer.py"
DURABLE = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "autovacuum": "on",
    "autovacuum_naptime": "5s",
    "shared_buffers": "256MB",
    "max_wal_size": "1GB",
}
DURABLE_MARIADB = {
    "innodb_flush_log_at_trx_commit": 1,
    "innodb_flush_method": "fsync",
    "innodb_doublewrite": 1,
    "innodb_buffer_pool_size": "256M",
}
Answer = TypeVar("Answer")
Work = Callable[[Engine, int, float], Awaitable[Answer]]
Contender = Callable[[str, int, float], Any]
"""Does a task ("install", "rates", "lateness", "through") with so many jobs, or for so many seconds."""


# --- our side


def new_jobs(count: int, delay_ms: int, step_ms: int = 0) -> list[NewJob]:
    make = IdMaker().make
    return [NewJob(make(), BODY, delay_ms=delay_ms + step_ms * at) for at in range(count)]


async def push_steps(engine: Engine, jobs: list[NewJob]) -> None:
    for at in range(0, len(jobs), STEP):
        await engine.push(QUEUE, jobs[at : at + STEP])


async def fill(engine: Engine, jobs: int, _: float) -> None:
    for at in range(0, jobs, STEP):
        await engine.push(QUEUE, new_jobs(STEP, DAY_MS + at * 10, 10))


async def rates(engine: Engine, jobs: int, _: float) -> dict[str, float]:
    made = new_jobs(jobs, DAY_MS)
    started = time.perf_counter()
    for job in made:
        await engine.push(QUEUE, [job])
    alone = jobs / (time.perf_counter() - started)

    left = iter(new_jobs(jobs * 2, DAY_MS))

    async def producer() -> None:
        for job in left:
            await engine.push(QUEUE, [job])

    started = time.perf_counter()
    await asyncio.gather(*(producer() for _ in range(CALLERS)))
    together = jobs * 2 / (time.perf_counter() - started)

    made = new_jobs(max(1, jobs * 5 // STEP) * STEP, 0)
    started = time.perf_counter()
    await push_steps(engine, made)
    batched = len(made) / (time.perf_counter() - started)

    started = time.perf_counter()
    taken = await consume(engine)
    assert taken == len(made)
    return {
        "one by one": alone,
        f"{CALLERS} tasks": together,
        f"batches of {STEP}": batched,
        "take + finish": taken / (time.perf_counter() - started),
    }


async def consume(engine: Engine) -> int:
    taken = 0
    while deliveries := await engine.reserve([QUEUE], limit=TAKE):
        await engine.ack([delivery.lease for delivery in deliveries])
        taken += len(deliveries)
    return taken


async def lateness(engine: Engine, jobs: int, _: float) -> list[float]:
    start = time.time_ns() // 1_000_000 + 2000
    make = IdMaker().make
    await push_steps(engine, [NewJob(make(), b"", due_at=start + 3000 * at // jobs) for at in range(jobs)])
    late: list[float] = []
    while len(late) < jobs:
        deliveries = await engine.reserve([QUEUE], limit=TAKE, wait_ms=10_000)
        received = time.time() * 1000
        late += [received - delivery.due_at for delivery in deliveries]
        await engine.ack([delivery.lease for delivery in deliveries])
    return late


async def through(engine: Engine, jobs: int, seconds: float) -> int:
    done, end = 0, time.perf_counter() + seconds
    while done < jobs and time.perf_counter() < end:
        await engine.push(QUEUE, new_jobs(STEP, 0))
        done += await consume(engine)
    return done


TASKS: dict[str, Work[Any]] = {"install": fill, "rates": rates, "lateness": lateness, "through": through}


def ours(url: str, task: str, jobs: int, seconds: float) -> Any:
    async def run() -> Any:
        store = await open_store(url)
        try:
            async with Engine(store) as engine:
                return await TASKS[task](engine, jobs, seconds)
        finally:
            await store.close()

    return asyncio.run(run())


# --- everybody


def peer(name: str, url: str, task: str, jobs: int, seconds: float) -> Any:
    command = [str(peer_python()), str(PEER), name, task, url, str(jobs), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def has_laravel() -> bool:
    """Says what to install if it is not there."""
    loads = ["php", "-r", "require 'Illuminate/Queue/autoload.php'; exit(extension_loaded('pdo_pgsql') ? 0 : 1);"]
    if shutil.which("php") and subprocess.run(loads, capture_output=True, check=False).returncode == 0:
        return True
    print(f"Laravel is left out. To measure it, too: apt-get install --no-install-recommends {LARAVEL_PACKAGES}\n")
    return False


def laravel(driver: str, url: str, task: str, jobs: int, seconds: float) -> Any:
    parts = urlsplit(url)
    where = [parts.hostname, str(parts.port), parts.path[1:], parts.username, parts.password or ""]
    command = ["php", str(LARAVEL_PEER), task, driver, *map(str, where), str(jobs), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
    if done.returncode:
        raise SystemExit(f"Laravel failed:\n{done.stderr}{done.stdout}")
    return json.loads(done.stdout.splitlines()[-1])


def bare_statements(url: str, task: str, jobs: int, _: float) -> Any:
    make = IdMaker().make
    with psycopg.connect(url, autocommit=True, prepare_threshold=0) as connection:
        if task == "install":
            connection.execute('CREATE TABLE bare (id text COLLATE "C" PRIMARY KEY, at bigint NOT NULL, body bytea)')
            ids = ([make() for _ in range(min(STEP, jobs - at))] for at in range(0, jobs, STEP))
            for some in ids:
                connection.execute(INSERT_MANY, (BODY, some))
            return None
        ids = [make() for _ in range(jobs)]
        started = time.perf_counter()
        for job_id in ids:
            connection.execute("INSERT INTO bare (id, at, body) VALUES (%s, %s, %b)", (job_id, DAY_MS, BODY))
        alone = jobs / (time.perf_counter() - started)

        steps = [[make() for _ in range(STEP)] for _ in range(max(1, jobs * 5 // STEP))]
        started = time.perf_counter()
        for step in steps:
            connection.execute(INSERT_MANY, (BODY, step))
        batched = len(steps) * STEP / (time.perf_counter() - started)

        started = time.perf_counter()
        for step in steps:
            for at in range(0, STEP, TAKE):
                some = step[at : at + TAKE]
                connection.execute("UPDATE bare SET at = at + 1 WHERE id = ANY(%s) RETURNING body", (some,)).fetchall()
                connection.execute("DELETE FROM bare WHERE id = ANY(%s)", (some,))
        finished = len(steps) * STEP / (time.perf_counter() - started)
    return {"one by one": alone, f"batches of {STEP}": batched, "take + finish": finished}


INSERT_MANY = "INSERT INTO bare (id, at, body) SELECT id, 0, %b FROM unnest(%s::text []) AS new (id)"


@contextmanager
def a_postgres() -> Iterator[PostgresServer]:
    with servers(PostgresServer, "postgres") as made:
        yield made.start(**DURABLE)


@contextmanager
def a_mariadb() -> Iterator[MysqlServer]:
    with servers(MysqlServer, "mysql") as made:
        yield made.start(**DURABLE_MARIADB)


def mariadb_database(server: MysqlServer) -> str:
    server.administer("DROP DATABASE duetime", "CREATE DATABASE duetime")
    return server.url


def database(server: PostgresServer, name: str) -> str:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")  # type: ignore[arg-type]
        connection.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]
    return server.url.replace("/postgres", f"/{name}")


def contenders(
    server: PostgresServer, mariadb: MysqlServer, folder: str, only: list[str], *, with_laravel: bool
) -> dict[str, Contender]:
    """Each with empty tables of its own. A store of ours needs no more than its URL here."""
    stores = {
        "duetime, SQLite": lambda: f"sqlite://{tempfile.mkdtemp(dir=folder)}/jobs.db?synchronous=FULL",
        "duetime, PostgreSQL": lambda: database(server, "duetime"),
        "duetime, MariaDB": lambda: mariadb_database(mariadb),
    }
    known = [*stores, *PEERS, FLOOR, *LARAVEL]
    if unknown := set(only).difference(known):
        raise SystemExit(f"--only: no contender {sorted(unknown)[0]!r}; there are {', '.join(known)}")
    chosen: dict[str, Contender] = {
        name: partial(ours, make()) for name, make in stores.items() if not only or name in only
    }
    for name in PEERS:
        if not only or name in only:
            chosen[name] = partial(peer, name, database(server, name))
    if not only or FLOOR in only:
        chosen[FLOOR] = partial(bare_statements, database(server, "bare"))
    if with_laravel:
        postgres, other = LARAVEL
        if not only or postgres in only:
            chosen[postgres] = partial(laravel, "pgsql", database(server, "laravel"))
        if not only or other in only:
            mariadb.administer("DROP DATABASE IF EXISTS laravel", "CREATE DATABASE laravel", GRANT)
            chosen[other] = partial(laravel, "mysql", mariadb.url.replace("/duetime?", "/laravel?"))
    return chosen


GRANT = "GRANT ALL ON laravel.* TO duetime@'%', duetime@localhost"


Rates = dict[str, dict[str, list[float]]]
"""Contender -> what was measured -> jobs/s of each round."""


def install(found: dict[str, Contender], behind: int) -> None:
    """Make everybody's tables. Two at a time, because nothing is measured here."""

    def make(name: str) -> None:
        started = time.perf_counter()
        found[name]("install", behind, 0)
        if behind:
            say(f"{name}: {behind:,} delayed jobs in {time.perf_counter() - started:.0f} s")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(make, found))


def measure(found: dict[str, Contender], jobs: int, rounds: int, seconds: float) -> Rates:
    results: Rates = {name: {} for name in found}
    names = list(found)
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            measured = found[name]("rates", jobs, seconds)
            say(f"round {turn + 1}, {name}: " + ", ".join(f"{what} {number(rate)}" for what, rate in measured.items()))
            for what, rate in measured.items():
                results[name].setdefault(what, []).append(rate)
    return results


def say(line: str) -> None:
    print(line, flush=True)


def rate_table(results: dict[str, dict[str, list[float]]]) -> str:
    rows: list[list[str]] = []
    for what in next(iter(results.values())):
        best = max((median(results[name][what]) for name in PEERS if name in results), default=0.0)
        for name, measured in results.items():
            if what not in measured:
                continue
            values = measured[what]
            rows.append([what, name, number(median(values)), spread(values), ratio(median(values), best)])
    return table(["what", "contender", "jobs/s", "spread", "to the best peer"], rows)


def late_table(found: dict[str, Contender], jobs: int, seconds: float) -> str:
    rows: list[list[str]] = []
    for name, contender in found.items():
        if name not in (*LARAVEL, FLOOR):
            values = contender("lateness", jobs, seconds)
            rows.append([name, f"{len(values)}", *(f"{percentile(values, p):.1f}" for p in (0, 50, 99, 100))])
    return table(["lateness in ms", "jobs", "min", "p50", "p99", "max"], rows)


def dead_rows(url: str) -> list[str]:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(
            "SELECT sum(n_dead_tup), sum(n_live_tup), sum(pg_total_relation_size(relid)) FROM pg_stat_user_tables"
        ).fetchone()
    dead, live, size = row or (0, 0, 0)
    return [number(float(dead)), number(float(live)), f"{int(size) / 2**20:.1f}"]


def dead_table(server: PostgresServer, found: dict[str, Contender], jobs: int, seconds: float) -> str:
    rows: list[list[str]] = []
    for name, contender in found.items():
        if name not in ("duetime, SQLite", "duetime, MariaDB", FLOOR, *LARAVEL):
            own = "duetime" if name.startswith("duetime") else name
            url = server.url.replace("/postgres", f"/{own}")
            started = time.perf_counter()
            with most_dead_rows(url) as seen:
                done = contender("through", jobs, seconds * (20 if own == "duetime" else 4))
            elapsed = time.perf_counter() - started
            time.sleep(1.5)  # sessions report their numbers once a second
            rows.append([name, number(done), number(max(seen)), *dead_rows(url), number(done / elapsed)])
            say(f"{name}: {done:,} jobs through in {elapsed:.0f} s")
    return table(["contender", "jobs through", "most dead rows", "dead rows", "live rows", "MiB", "jobs/s"], rows)


@contextmanager
def most_dead_rows(url: str) -> Iterator[list[float]]:
    """Notes the number of dead rows every second."""
    seen, ended = [0.0], threading.Event()

    def look() -> None:
        while not ended.wait(1):
            seen.append(float(dead_rows(url)[0].replace(",", "")))

    looker = threading.Thread(target=look)
    looker.start()
    try:
        yield seen
    finally:
        ended.set()
        looker.join()


def versions(server: PostgresServer, mariadb: MysqlServer) -> str:
    with psycopg.connect(server.url) as connection:
        (version,) = connection.execute("SHOW server_version").fetchone() or ("",)
    asked = f"import importlib.metadata as m; print(*(n + ' ' + m.version(n) for n in {PEERS}), sep=', ')"
    found = subprocess.run([str(peer_python()), "-c", asked], capture_output=True, text=True, check=True)
    settings, others = (", ".join(f"{k}={v}" for k, v in each.items()) for each in (DURABLE, DURABLE_MARIADB))
    ((theirs,),) = mariadb.administer("SELECT version()")
    return f"PostgreSQL {version}: {settings}\nMariaDB {theirs}: {others}\n{found.stdout.strip()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--jobs", type=int, default=500, help="jobs pushed one by one (tasks: 2, batches: 5 times that)"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--behind", type=int, default=20_000, help="delayed jobs in the tables of the second run")
    parser.add_argument("--through", type=int, default=10_000, help="jobs before dead rows are counted")
    parser.add_argument("--only", action="append", default=[], help="one contender; may be repeated")
    parser.add_argument("--seconds", type=float, default=5, help="the most that a peer's rate is measured for")
    options = parser.parse_args()
    jobs, seconds = options.jobs, options.seconds
    with a_postgres() as server, a_mariadb() as mariadb, tempfile.TemporaryDirectory() as folder:
        say(versions(server, mariadb) + "\n")
        with_laravel = has_laravel()
        medians: dict[int, Rates] = {}
        for behind in dict.fromkeys((0, options.behind)):
            found = contenders(server, mariadb, folder, options.only, with_laravel=with_laravel)
            install(found, behind)
            say(f"\n{behind:,} delayed jobs behind\n{late_table(found, LATE_JOBS, seconds)}\n")
            medians[behind] = measure(found, jobs, options.rounds, seconds)
            say(
                f"\n{behind:,} delayed jobs behind, medians of {options.rounds} rounds\n{rate_table(medians[behind])}\n"
            )
        for name in medians[0]:
            shares = [
                f"{what} {ratio(median(medians[options.behind][name][what]), median(values))}"
                for what, values in medians[0][name].items()
            ]
            say(f"{name}, with {options.behind:,} behind against empty: {', '.join(shares)}")
        if options.through:
            found = contenders(server, mariadb, folder, options.only, with_laravel=False)
            install(found, 0)
            say("\n" + dead_table(server, found, options.through, seconds))


if __name__ == "__main__":
    main()
