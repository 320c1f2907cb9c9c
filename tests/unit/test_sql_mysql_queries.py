"""Every statement on MariaDB: it is used, walks an index, and reads the rows that it answers."""

import re
from collections.abc import AsyncIterator
from contextlib import closing

import pytest
from pymysql.connections import Connection

from duetime.model.job import NewJob
from duetime.model.names import Queue
from duetime.stores.base import Mark, Push, Pushed
from duetime.stores.mysql.connection import MysqlAddress, open_connection
from duetime.stores.mysql.store import MysqlStore
from duetime.stores.sql.queries import load_queries, statements
from tests.plugins.mysql_server import PREFIX, MysqlServer

pytestmark = pytest.mark.store_kind("mysql")

QUEUE = Queue("shop", "mail")
QUERIES = load_queries("mysql")
WALKS = {name for name in QUERIES if name.startswith("check_")}
"""Full walks by intention."""
ROWS = 1_500


@pytest.fixture
async def planner(mysql_url: str, mysql_server: MysqlServer) -> AsyncIterator[Connection]:
    """A session of the store's kind, on tables with jobs in every state, many of them with the same times."""
    jobs = [NewJob(f"{number:05}", b"", due_at=1_000, tries=1, ttl_ms=0) for number in range(ROWS)]
    store = await MysqlStore.open(mysql_url)
    for first in range(0, ROWS, 500):
        [answer] = await store.push(QUEUE, [Push(jobs[first : first + 500], mark=Mark(str(first), b"", 1))])
        assert isinstance(answer, Pushed)
    for number in range(20):
        await store.push(Queue("plans", str(number)), [Push([NewJob("a", b"body")])])
        await store.registry.put("plan", str(number), b"")
        await store.registry.increment(str(number), life_ms=1)
    await store.registry.delete("plan", "1")
    await store.close()
    table = f"duetime.{PREFIX}jobs"
    mysql_server.administer(
        f"UPDATE {table} SET place = 1, lease_until = 5000 WHERE id >= '00500' AND id < '01000'",
        f"UPDATE {table} SET place = 2, dead_at = 5000, reason = 'tries' WHERE id >= '01000'",
    )
    with closing(open_connection(MysqlAddress.parse(mysql_server.url))) as connection:
        yield connection


def values_of(statement: str, queue: int) -> dict[str, object]:
    """Values that fit the parameters of a statement."""
    by_name = any(f"`{PREFIX}{table}`" in statement for table in ("marks", "totals", "results"))
    values: dict[str, object] = dict.fromkeys(re.findall(r"%\((\w+)\)s", statement), 1)
    values |= {name: 100_000 for name in ("now", "last", "before") if name in values}
    texts = ("namespace", "name", "kind", "key", "after_id", "prefix", "beyond", "message")
    values |= {name: "plan" for name in texts if name in values}
    values |= {name: b"x" for name in ("digest", "answer") if name in values}
    lists = {
        "ids": ["00001", "00700"],
        "leases": [("00700", 1, 1)],
        "missing": [2],
        "numbers": [1],
        "names": ["0", "500"],
        "jobs": '[{"id": "00001"}]',
    }
    lists["queues"] = '[["plans", "1"]]'
    if f"`{PREFIX}queues`" in statement:
        lists["ids"] = [1, 2]  # type: ignore[list-item]
        lists |= {} if "json_table" in statement else {"jobs": 1}  # type: ignore[dict-item]
    values |= {name: value for name, value in lists.items() if name in values}
    if "queue" in values:
        values["queue"] = "plan" if by_name else queue
    return values


def own(name: str) -> list[str]:
    return statements(MysqlAddress.parse("mysql:///app").name_tables(QUERIES[name]) + ";\n")


async def test_no_query_scans_or_sorts_a_table(planner: Connection) -> None:
    in_order = {"list_queues", "some_discarded", "last_announcement", "outbox_queues"}
    """These walk an index in its order, on purpose."""
    given = {"moved", "asked"}
    problems: list[object] = []
    with planner.cursor() as cursor:
        cursor.execute(f"SELECT id FROM {PREFIX}queues WHERE name = 'mail'")
        [(queue,)] = cursor.fetchall()
        for name in sorted(set(QUERIES) - WALKS):
            for statement in own(name):
                if statement.startswith("INSERT"):
                    continue
                cursor.execute(f"EXPLAIN {statement}", values_of(statement, queue))
                for _, _, table, access, *_, extra in cursor.fetchall():
                    whole = access == "ALL" and table not in given and not str(table).startswith("<")
                    whole = whole or (access == "index" and name not in in_order)
                    if whole or "filesort" in str(extra):
                        problems.append((name, table, access, extra))
    assert problems == []


async def test_a_query_reads_the_rows_it_answers_and_few_more(planner: Connection) -> None:
    after: list[tuple[str, dict[str, object]]] = [
        ("ready_jobs", {"priority": 2, "after_at": 1_000, "after_id": "00250", "now": 2_000}),
        ("ready_jobs", {"priority": 2, "after_at": -1, "after_id": "", "now": 2_000}),
        ("list_waiting", {"priority": 2, "after_at": 1_000, "after_id": "00250", "last": 2_000, "alive_at": 0}),
        ("list_leased", {"after_at": 5_000, "after_id": "00750"}),
        ("list_dead", {"after_at": 5_000, "after_id": "01250"}),
        ("lapsed_jobs", {"now": 6_000}),
        ("longest_dead", {}),
        ("heads", {}),
        ("next_lapse", {}),
        ("find_jobs", {"ids": [f"{number:05}" for number in range(10)]}),
        ("heads_of", {"queues": '[["shop", "mail"]]'}),
        ("count_held", {"ids": ["00700"], "leases": [("00700", 1, 1)]}),
    ]
    read: dict[str, int] = {}
    with planner.cursor() as cursor:
        cursor.execute(f"SELECT id FROM {PREFIX}queues WHERE name = 'mail'")
        [(queue,)] = cursor.fetchall()
        for name, values in after:
            [statement] = own(name)
            before = rows_read(planner)
            cursor.execute(statement, {"queue": queue, "limit": 10, **values})
            assert cursor.fetchall()
            read[f"{name} {values}"] = rows_read(planner) - before
    assert {name: count for name, count in read.items() if count > 30} == {}


def rows_read(connection: Connection) -> int:
    """By a seek or in the order of an index, in this session."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
        return sum(int(count) for name, count in cursor.fetchall() if "rnd" not in name)
