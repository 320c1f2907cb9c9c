"""Every hot statement on PostgreSQL, explained on a large table: it seeks in its index and touches few pages."""

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from duetime.stores.postgres.connection import PostgresAddress, PostgresLink
from duetime.stores.sql.queries import load_queries
from tests.plugins.postgres_server import PostgresServer

pytestmark = pytest.mark.store_kind("postgres")

ROWS_AT_SCALE_1 = 10_000
"""Grows with the square of the scale: a million in `make test-full`."""
MOST_PAGES = 150
"""A statement on ten jobs reads three levels of up to six indexes for each of them at most."""

SCHEMA = "planned"
FILL = """
INSERT INTO planned.queues VALUES (1, 'shop', 'mail', 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, %(rows)s, 0, 0, 1);
INSERT INTO planned.queues
SELECT n, 'shop', 'queue ' || n, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1000000 + n FROM generate_series(2, 2000) AS n;
INSERT INTO planned.totals
SELECT 'shop', 'queue ' || n, 20000, 1, 1, 1, 1, 1, 1, 1, 1, 1 FROM generate_series(2, 2000) AS n;
INSERT INTO planned.marks
SELECT 'shop', 'mail', 'mark ' || n, '', 1000000 + n, '' FROM generate_series(1, 5000) AS n;
INSERT INTO planned.incoming (namespace, queue, id, if_exists, priority, due_at, ttl_ms, tries, body)
SELECT 'shop', 'queue ' || n %% 50, n::text, 'keep', 2, 1, 0, 0, '' FROM generate_series(1, 5000) AS n;
INSERT INTO planned.jobs
SELECT
    1, 'job ' || n, n, n %% 10 / 8 + n %% 10 / 9, n %% 3 + 1, n, CASE WHEN n %% 10 = 7 THEN 1000000 + n ELSE 0 END,
    CASE WHEN n %% 10 = 8 THEN n ELSE 0 END, CASE WHEN n %% 10 = 9 THEN n ELSE 0 END, 0, 0, 1, 4,
    CASE WHEN n %% 10 = 9 THEN 'tries' ELSE '' END, ''
FROM generate_series(1, %(rows)s) AS n;
INSERT INTO planned.bodies SELECT 1, 'job ' || n, NULL, 'body' FROM generate_series(1, %(rows)s) AS n;
"""

IDS = [f"job {number * 900}" for number in range(1, 11)]
HERE = {"namespace": "shop", "name": "mail"}
AFTER = {"queue": 1, "after_at": 5_000, "after_id": "job 5000", "limit": 10}
NUMBERS = [1] * 10
HOT: dict[str, dict[str, Any]] = {
    "lock_queue": HERE,
    "load_queue": HERE,
    "heads": {"queue": 1},
    "heads_of": {"namespaces": ["shop"] * 3, "names": ["mail", "queue 7", "queue 8"]},
    "find_jobs": {"queue": 1, "ids": IDS},
    "get_payloads": {"queue": 1, "ids": IDS},
    "get_jobs": {"queue": 1, "ids": IDS},
    "job_sizes": {"queue": 1, "ids": IDS},
    "ready_jobs": {**AFTER, "priority": 2, "now": 10**12},
    "ready_ahead": {"queue": 1, "now": 10**12, "limit": 10},
    "lease_jobs": {"queue": 1, "lease_until": 10**12, "ids": IDS},
    "count_held": {"queue": 1, "ids": IDS, "borns": NUMBERS, "attempts": NUMBERS},
    "delete_jobs": {"queue": 1, "ids": IDS},
    "insert_jobs": {
        "queue": 1,
        "ids": [f"new {number}" for number in range(10)],
        **dict.fromkeys(["borns", "due_ats", "expires_ats", "tries", "attempts", "sizes", "priorities"], NUMBERS),
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
    "lapsed_jobs": {"queue": 1, "now": 10**12, "limit": 10},
    "expired_jobs": {"queue": 1, "now": 10**12, "limit": 10},
    "longest_dead": {"queue": 1, "limit": 10},
    "next_lapse": {"queue": 1},
    "next_expiry": {"queue": 1},
    "list_waiting": {**AFTER, "priority": 2, "last": 10**12, "alive_at": 0},
    "list_leased": AFTER,
    "list_dead": AFTER,
    "some_jobs": {"queue": 1, "limit": 10},
    "queues_to_reap": {"now": 10**12, "limit": 10},
    "next_reap": {},
    "get_mark": {"namespace": "shop", "queue": "mail", "name": "mark 77", "now": 1},
    "incoming_queues": {"limit": 10},
    "take_incoming": {"namespace": "shop", "name": "queue 7", "limit": 10},
    "insert_incoming": {
        **HERE,
        "id": "x",
        "if_exists": "keep",
        **dict.fromkeys(["priority", "due_at", "delay_ms", "ttl_ms", "tries"], 1),
        "attributes": None,
        "body": b"",
    },
    "incoming_rules": HERE,
}


@pytest.fixture(scope="module")
def planner(postgres_server: PostgresServer, scale: int) -> Iterator["psycopg.Connection[Any]"]:
    """A session as the store's own, on large tables whose statistics are fresh."""
    link = PostgresLink(PostgresAddress.parse(f"{postgres_server.url}?schema={SCHEMA}&application_name=planner"), None)
    link.prepare_tables()
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        with psycopg.ClientCursor(connection) as cursor:
            cursor.execute(FILL, {"rows": ROWS_AT_SCALE_1 * scale**2})
        for table in ("jobs", "bodies", "queues", "totals", "marks", "incoming"):
            connection.execute(f"VACUUM (ANALYZE) {SCHEMA}.{table}")  # type: ignore[arg-type]
        try:
            with link.connect() as session:
                yield session
        finally:
            connection.execute(f"DROP SCHEMA {SCHEMA} CASCADE")  # type: ignore[arg-type]


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", []):
        yield from nodes(part)


@pytest.mark.parametrize("name", HOT)
def test_a_hot_statement_seeks_in_its_index(planner: "psycopg.Connection[Any]", name: str) -> None:
    query = PostgresAddress.parse(f"postgresql:///?schema={SCHEMA}").name_tables(load_queries("postgres")[name])
    with planner.transaction(force_rollback=True):
        row = planner.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query}", HOT[name]).fetchone()  # type: ignore[arg-type]
    [found] = row[0] if isinstance(row[0], list) else json.loads(row[0])
    steps = list(nodes(found["Plan"]))
    scans = [step for step in steps if step["Node Type"] in ("Seq Scan", "Bitmap Heap Scan", "Sort", "Hash Join")]
    assert [step["Node Type"] for step in scans if step.get("Actual Rows", 0) > 50 or "Scan" in step["Node Type"]] == []
    top = found["Plan"]
    assert top["Shared Hit Blocks"] + top["Shared Read Blocks"] <= MOST_PAGES, steps
    assert sum(step.get("Rows Removed by Filter", 0) for step in steps) <= 50, steps
