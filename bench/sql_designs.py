"""Two designs for concurrency on PostgreSQL beside each other: lock the queue's row (A), or skip locked jobs (B).

    make bench ARGS=sql_designs

A runs the store's own statements. B takes an advisory lock shared instead of the row's, skips jobs that others have
locked, and counts in 16 rows per queue. Each process has four connections; each of these pushes 50 jobs in a call,
reserves 50 and acks them. Commits are durable. docs/decisions/023-postgresql.md has the figures.
"""

import argparse
import itertools
import multiprocessing
import random
import threading
import time
from typing import Any

from bench.report import median, number, ratio, spread, table
from bench.sql import a_postgres, database
from duetime.model.ids import IdMaker
from duetime.stores.postgres.connection import PostgresAddress, PostgresLink, open_connection
from duetime.stores.postgres.session import PostgresSession, Statement
from duetime.stores.sql.queries import load_queries

CALL, THREADS, SLOTS = 50, 4, 16
BODY = b"x" * 100
SLOT_TABLE = """
CREATE TABLE dt.slots (queue bigint, slot bigint, jobs bigint, leased bigint, PRIMARY KEY (queue, slot))
WITH (fillfactor = 50)
"""
NOW = "floor(extract(EPOCH FROM clock_timestamp()) * 1000)::bigint"
COUNT_IN_SLOT = """
counted AS (
    INSERT INTO dt.slots AS s SELECT %(queue)s, %(slot)s, {jobs}, {leased} FROM {source}
    ON CONFLICT (queue, slot) DO UPDATE SET jobs = s.jobs + excluded.jobs, leased = s.leased + excluded.leased
)
"""
DESIGN_B = {
    "share_b": "SELECT pg_advisory_xact_lock_shared(%(queue)s)",
    "push_b": f"""
        WITH new_jobs AS (
            INSERT INTO dt.jobs
            SELECT %(queue)s, new.id, {NOW}, 0, 2, {NOW}, 0, 0, 0, 0, 0, 0, 100, '', ''
            FROM unnest(%(ids)b::text []) AS new (id)
            ON CONFLICT (queue, id) DO NOTHING
            RETURNING id
        ),
        new_bodies AS (
            INSERT INTO dt.bodies SELECT %(queue)s, new.id, NULL, new.body
            FROM unnest(%(ids)b::text [], %(bodies)b::bytea []) AS new (id, body)
            INNER JOIN new_jobs ON new_jobs.id = new.id
        ),
        {COUNT_IN_SLOT.format(jobs="count(*)", leased="0", source="new_jobs")}
        SELECT due_at FROM dt.jobs WHERE queue = %(queue)s AND place = 0 AND priority = 2 ORDER BY due_at LIMIT 1
    """,
    "reserve_b": f"""
        WITH picked AS MATERIALIZED (
            SELECT ctid AS place_of_row, id FROM dt.jobs
            WHERE queue = %(queue)s AND place = 0 AND priority = 2 AND due_at <= {NOW}
            ORDER BY due_at, id LIMIT %(limit)s FOR UPDATE SKIP LOCKED
        ),
        leased AS (
            UPDATE dt.jobs SET place = 1, lease_until = {NOW} + 60000, used = used + 1, attempt = attempt + 1
            WHERE ctid = ANY(ARRAY(SELECT place_of_row FROM picked))
            RETURNING id, born, attempt
        ),
        {COUNT_IN_SLOT.format(jobs="0", leased="count(*)", source="leased")}
        SELECT leased.id, leased.born, leased.attempt, b.body
        FROM leased
        CROSS JOIN LATERAL (SELECT body FROM dt.bodies WHERE queue = %(queue)s AND id = leased.id LIMIT 1) AS b
    """,
    "ack_b": f"""
        WITH gone AS (
            DELETE FROM dt.jobs WHERE ctid = ANY(ARRAY(
                SELECT j.ctid
                FROM unnest(%(ids)b::text [], %(borns)b::bigint [], %(attempts)b::bigint [])
                    AS lease (id, born, attempt)
                CROSS JOIN LATERAL (
                    SELECT ctid, place, born, attempt FROM dt.jobs WHERE queue = %(queue)s AND id = lease.id LIMIT 1
                ) AS j
                WHERE j.place = 1 AND j.born = lease.born AND j.attempt = lease.attempt
            ))
            RETURNING id
        ),
        gone_bodies AS (
            DELETE FROM dt.bodies WHERE ctid = ANY(ARRAY(
                SELECT found.ctid FROM gone CROSS JOIN LATERAL (
                    SELECT ctid FROM dt.bodies WHERE queue = %(queue)s AND id = gone.id LIMIT 1
                ) AS found
            ))
        ),
        {COUNT_IN_SLOT.format(jobs="-count(*)", leased="-count(*)", source="gone")}
        SELECT count(*) FROM gone
    """,
}
PLAIN = ("priorities", "due_ats", "relatives", "ttls", "tries", "attempts", "sizes")


class Client:
    """One connection that works by one of the designs."""

    def __init__(self, address: PostgresAddress, design: str) -> None:
        texts = {**load_queries("postgres"), **DESIGN_B, "begin": "BEGIN", "commit": "COMMIT", "rollback": "ROLLBACK"}
        statements = {name: Statement.parse(address.name_tables(text)) for name, text in texts.items()}
        self._session = PostgresSession(open_connection(address), statements, prepares=True)
        self._make = IdMaker().make
        self._first, self._suffix = ("hold_queue", "single_statement") if design == "A" else ("share_b", "b")

    def _call(self, verb: str, queue: int, **given: object) -> list[tuple[Any, ...]]:
        known = {"queue": queue, "now": None, "slot": random.randrange(SLOTS), **given}
        self._session.begin(read_only=False)
        return self._session.fetch_and_commit([(self._first, known), (f"{verb}_{self._suffix}", known)])[1]

    def work(self, queue: int) -> int:
        """How many jobs were pushed, reserved and acked. Others may have taken ours, and we theirs."""
        ids = [self._make() for _ in range(CALL)]
        plain = dict.fromkeys(PLAIN, [0] * CALL) | {"priorities": [2] * CALL, "relatives": [1] * CALL}
        limits = {"count": CALL, "ttl": 0, "largest": 100}
        self._call("push", queue, ids=ids, bodies=[BODY] * CALL, attributes=[None] * CALL, **plain, **limits)
        quotas = {"high": 0, "normal": 0, "low": 0, "bytes": 4_000_000, "ttr_ms": 60_000}
        rows = self._call("reserve", queue, limit=CALL, **quotas)
        leases = [row[:3] for row in rows]
        if self._suffix == "single_statement":
            leases = [(row[6], row[7], row[12] + 1) for row in rows if row[6] is not None]
        if not leases:
            return 0
        taken, borns, attempts = map(list, zip(*leases, strict=True))
        fences = {"ids": taken, "borns": borns, "attempts": attempts}
        self._call("ack", queue, **fences, count=len(taken), floor=max(borns), idle_ms=600_000)
        return len(taken)


def run_process(address: PostgresAddress, design: str, queues: int, seconds: float, done: Any) -> None:
    counts: list[int] = []

    def loop() -> None:
        client, count = Client(address, design), 0
        client.work(random.randint(1, queues))
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            count += client.work(random.randint(1, queues))
        counts.append(count)

    threads = [threading.Thread(target=loop) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done.put(sum(counts))


def measure(url: str, design: str, queues: int, processes: int, seconds: float) -> float:
    """Jobs per second that were pushed, reserved and acked by all processes together."""
    address = PostgresAddress.parse(url)
    PostgresLink(address, None).prepare_tables()
    with open_connection(address) as connection:
        connection.execute(address.name_tables(SLOT_TABLE))  # type: ignore[arg-type]
        connection.execute(
            address.name_tables(  # type: ignore[arg-type]
                "INSERT INTO dt.queues SELECT n, 'bench', n::text, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 "
                f"FROM generate_series(1, {queues}) AS n"
            )
        )
    context = multiprocessing.get_context("spawn")
    done = context.Queue()
    workers = [
        context.Process(target=run_process, args=(address, design, queues, seconds, done)) for _ in range(processes)
    ]
    for worker in workers:
        worker.start()
    total = sum(done.get(timeout=60 + seconds) for _ in workers)
    for worker in workers:
        worker.join()
    return total / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    rows: list[list[str]] = []
    with a_postgres() as server:
        for queues, processes in itertools.product((1, 100), (1, 4)):
            rates: dict[str, list[float]] = {"A": [], "B": []}
            for _, design in itertools.product(range(options.rounds), rates):
                url = database(server, "designs")
                rates[design].append(measure(url, design, queues, processes, options.seconds))
            locks, skips = median(rates["A"]), median(rates["B"])
            cells = [number(locks), spread(rates["A"]), number(skips), spread(rates["B"]), ratio(skips, locks)]
            rows.append([f"{queues} queues, {processes} processes", *cells])
            print(f"{rows[-1]}", flush=True)
    print(table(["jobs/s through", "A", "spread", "B", "spread", "B to A"], rows))


if __name__ == "__main__":
    main()
