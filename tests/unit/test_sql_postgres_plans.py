"""Every hot statement on PostgreSQL, explained on a large table: it seeks in its index and touches few pages.

Each is looked at twice: with a plan that was made while the tables were empty, as a session does that is older than the
jobs, and with one that knows the statistics of the full tables.
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import psycopg
import pytest

from duetime.stores.postgres.connection import PostgresAddress, PostgresLink, open_connection
from duetime.stores.postgres.session import Statement
from duetime.stores.sql.queries import load_queries
from tests.plugins.postgres_server import PostgresServer
from tests.unit.hot_statements import HERE, HOT_ON_BOTH, IDS, ROWS_AT_SCALE_1

pytestmark = pytest.mark.store_kind("postgres")

MOST_PAGES = 200
"""A statement on ten jobs reads three levels of up to six indexes for each of them at most, and their rows."""

MOST_ROWS = 60

SCHEMA = "planned"
FILL = """
INSERT INTO planned.queues VALUES (1, 'shop', 'mail', 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, %(rows)s, 0, 0, 1);
INSERT INTO planned.queues
SELECT n, 'shop', 'queue ' || n, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1000000 + n
FROM generate_series(2, 2000) AS n;
INSERT INTO planned.totals
SELECT 'shop', 'queue ' || n, 20000, 1, 1, 1, 1, 1, 1, 1, 1, 1 FROM generate_series(2, 2000) AS n;
INSERT INTO planned.totals VALUES ('shop', 'mail', 20000, 1, 1, 1, 1, 1, 1, 1, 1, 1);
INSERT INTO planned.marks
SELECT 'shop', 'mail', 'mark ' || n, '', 1000000 + n, '' FROM generate_series(1, 5000) AS n;
INSERT INTO planned.results
SELECT 'shop', 'mail', 'job ' || n, 1, 1000000 + n, '' FROM generate_series(1, 10000) AS n;
INSERT INTO planned.outbox (namespace, queue, id, if_exists, priority, due_at, ttl_ms, tries, body)
SELECT 'shop', 'queue ' || n %% 50, n::text, 'keep', 2, 1, 0, 0, '' FROM generate_series(1, 5000) AS n;
INSERT INTO planned.jobs
SELECT
    1, 'job ' || n, n, n %% 10 / 8 + n %% 10 / 9, n %% 3 + 1, n, CASE WHEN n %% 10 = 7 THEN 1000000 + n ELSE 0 END,
    CASE WHEN n %% 10 = 8 THEN n ELSE 0 END, CASE WHEN n %% 10 = 9 THEN n ELSE 0 END, 0, 0, 1, 4,
    CASE WHEN n %% 10 = 9 THEN 'tries' ELSE '' END, ''
FROM generate_series(1, %(rows)s) AS n;
INSERT INTO planned.bodies SELECT 1, 'job ' || n, NULL, 'body' FROM generate_series(1, %(rows)s) AS n;
"""

NUMBERS = [1] * 10
HOT: dict[str, dict[str, Any]] = {
    **HOT_ON_BOTH,
    "heads_of": {"namespaces": ["shop"] * 3, "names": ["mail", "queue 7", "queue 8"]},
    "counts_of": {"now": 5, "namespaces": ["shop"] * 3, "names": ["mail", "queue 7", "queue 8"]},
    "totals_of": {"namespaces": ["shop"] * 3, "names": ["mail", "queue 7", "queue 8"]},
    "count_held": {"queue": 1, "ids": IDS, "borns": NUMBERS, "attempts": NUMBERS},
    "insert_jobs": {
        "queue": 1,
        "ids": [f"new {number}" for number in range(10)],
        **dict.fromkeys(["borns", "due_ats", "expires_ats", "tries", "attempts", "sizes", "priorities"], NUMBERS),
    },
    "insert_bodies": {
        "queue": 1,
        "ids": [f"new {number}" for number in range(10)],
        "attributes": [None] * 10,
        "bodies": [b"body"] * 10,
    },
    "move_jobs": {
        "queue": 1,
        "ids": IDS,
        **dict.fromkeys(["places", "due_ats", "expires_ats", "lease_untils", "dead_ats", "tries", "used"], NUMBERS),
        "reasons": [""] * 10,
        "errors": [""] * 10,
    },
    "lock_queue_by_id": {"queue": 1},
    "push_single_statement": {
        "queue": 1,
        "now": None,
        "count": 10,
        "ttl": 0,
        "largest": 4,
        "least": "new 0",
        "greatest": "new 9",
        "of_one_moment": 1,
        "ids": [f"new {number}" for number in range(10)],
        **dict.fromkeys(["priorities", "due_ats", "relatives", "ttls", "tries", "attempts", "sizes"], NUMBERS),
        "attributes": [None] * 10,
        "bodies": [b"body"] * 10,
    },
    "push_one_single_statement": {
        "queue": 1,
        "now": 20000 * 86_400_000,
        "job_id": "new",
        **dict.fromkeys(["ttl", "largest", "priority", "tries", "attempt", "size"], 1),
        **dict.fromkeys(["due_at", "relative"], 0),  # before all others
        "attributes": None,
        "body": b"body",
    },
    "ack_single_statement": {
        "queue": 1,
        "now": None,
        "count": 10,
        "floor": 5,
        "idle_ms": 5,
        "ids": [f"job {number * 100 + 8}" for number in range(10)],
        "borns": [number * 100 + 8 for number in range(10)],
        "attempts": NUMBERS,
    },
    "reserve_single_statement": {
        "queue": 1,
        "now": 500_000,
        "limit": 10,
        "ttr_ms": 5,
        **dict.fromkeys(["high", "normal", "low"], 3),
        "bytes": 5_000,
    },
    "keep_result": {"namespace": "shop", "queue": "mail", "id": "x", "born": 1, "kept_until": 1, "result": b"x"},
    "delete_old_results": {"now": 1_000_010, "limit": 10},
    "insert_outbox_job": {
        **HERE,
        "id": "x",
        "if_exists": "keep",
        **dict.fromkeys(["priority", "due_at", "delay_ms", "ttl_ms", "tries"], 1),
        "attributes": None,
        "body": b"",
    },
    "set_aside_outbox_jobs": {"numbers": NUMBERS},
}


Session = psycopg.Connection[Any]
Plan = dict[str, Any]


class Plans(NamedTuple):
    """The plan of each hot statement, with what its execution read."""

    stale: dict[str, Plan]
    fresh: dict[str, Plan]


@pytest.fixture(scope="module")
def plans(postgres_server: PostgresServer, scale: int) -> Iterator[Plans]:
    address = PostgresAddress.parse(f"{postgres_server.url}?schema={SCHEMA}&application_name=planner")
    PostgresLink(address, None).prepare_tables()
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        try:
            with open_connection(address) as session:
                prepare(session, address)
                for name in HOT:
                    explain(session, name)
                with psycopg.ClientCursor(connection) as cursor:
                    cursor.execute(FILL, {"rows": ROWS_AT_SCALE_1 * scale**2})
                stale = {name: explain(session, name) for name in HOT}
                for table in ("jobs", "bodies", "queues", "totals", "marks", "results", "outbox"):
                    connection.execute(f"VACUUM (ANALYZE) {SCHEMA}.{table}")  # type: ignore[arg-type]
                yield Plans(stale, {name: explain(session, name) for name in HOT})
        finally:
            connection.execute(f"DROP SCHEMA {SCHEMA} CASCADE")  # type: ignore[arg-type]


def prepare(session: Session, address: PostgresAddress) -> None:
    for name, query in load_queries("postgres").items():
        if name in HOT:
            text = Statement.parse(address.name_tables(query)).text.decode()
            session.execute(f"PREPARE {name} AS {text}")  # type: ignore[arg-type]


def explain(session: Session, name: str) -> Plan:
    """Run a prepared statement, and undo it. PostgreSQL plans it anew only if it learned something of its tables."""
    values = [HOT[name][parameter] for parameter in Statement.parse(load_queries("postgres")[name]).names]
    arguments = f"({', '.join(['%s'] * len(values))})" if values else ""
    with session.transaction(force_rollback=True), psycopg.ClientCursor(session) as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE {name}{arguments}", values)
        row = cursor.fetchone() or ()
    [found] = row[0] if isinstance(row[0], list) else json.loads(row[0])
    return found["Plan"]


def nodes(plan: Plan) -> Iterator[Plan]:
    yield plan
    for part in plan.get("Plans", []):
        yield from nodes(part)


def test_the_push_of_one_job_is_explained_as_one_that_succeeds(plans: Plans) -> None:
    assert [plan["push_one_single_statement"]["Actual Rows"] for plan in plans] == [1, 1]


@pytest.mark.parametrize("age", Plans._fields)
@pytest.mark.parametrize("name", HOT)
def test_a_hot_statement_seeks_in_its_index(plans: Plans, name: str, age: str) -> None:
    plan: Plan = getattr(plans, age)[name]
    steps = list(nodes(plan))
    scans = [step for step in steps if step["Node Type"] in ("Seq Scan", "Bitmap Heap Scan", "Sort", "Hash Join")]
    assert [step["Node Type"] for step in scans if step.get("Actual Rows", 0) > 50 or "Scan" in step["Node Type"]] == []
    read = max(step["Actual Rows"] * step["Actual Loops"] for step in steps)
    assert read <= MOST_ROWS, steps
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] <= MOST_PAGES, steps
    assert sum(step.get("Rows Removed by Filter", 0) for step in steps) <= 50, steps
