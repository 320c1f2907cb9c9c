"""Every hot statement on MariaDB, run on a large table: it seeks in its index and reads few rows."""

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from duetime.stores.mysql.connection import MysqlAddress, MysqlLink
from duetime.stores.mysql.session import MysqlSession
from tests.plugins.mysql_server import MysqlServer
from tests.unit.hot_statements import HOT_ON_BOTH, IDS, ROWS_AT_SCALE_1

pytestmark = pytest.mark.store_kind("mysql")

MOST_ROWS = 150
"""A statement on ten jobs seeks a few times for each of them."""

PREFIX = "planned_"
TABLES = ("queues", "totals", "marks", "results", "jobs", "bodies", "outbox", "announcements")
FILL = """
INSERT INTO planned_queues VALUES (1, 'shop', 'mail', 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ROWS, 0, 0, 1);
INSERT INTO planned_queues
SELECT seq, 'shop', concat('queue ', seq), 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1000000 + seq FROM seq_2_to_2000;
INSERT INTO planned_totals
SELECT 'shop', concat('queue ', seq), 20000, 1, 1, 1, 1, 1, 1, 1, 1, 1 FROM seq_2_to_2000;
INSERT INTO planned_marks SELECT 'shop', 'mail', concat('mark ', seq), '', 1000000 + seq, '' FROM seq_1_to_5000;
INSERT INTO planned_results SELECT 'shop', 'mail', concat('job ', seq), 1, 1000000 + seq, '' FROM seq_1_to_10000;
INSERT INTO planned_outbox (namespace, queue, id, if_exists, priority, due_at, ttl_ms, tries, body)
SELECT 'shop', concat('queue ', seq % 50), seq, 'keep', 2, 1, 0, 0, '' FROM seq_1_to_5000;
INSERT INTO planned_announcements (message) SELECT '' FROM seq_1_to_1000;
INSERT INTO planned_jobs (
    queue, id, born, place, priority, due_at, expires_at, lease_until, dead_at,
    tries, used, attempt, size, reason, error
)
SELECT
    1, concat('job ', seq), seq, seq % 10 DIV 8 + seq % 10 DIV 9, seq % 3 + 1, seq,
    IF(seq % 10 = 7, 1000000 + seq, 0), IF(seq % 10 = 8, seq, 0), IF(seq % 10 = 9, seq, 0), 0, 0, 1, 4,
    IF(seq % 10 = 9, 'tries', ''), ''
FROM seq_1_to_ROWS;
INSERT INTO planned_bodies SELECT 1, concat('job ', seq), NULL, 'body' FROM seq_1_to_ROWS;
"""

ASKED = '[["shop", "mail"], ["shop", "queue 7"], ["shop", "queue 8"]]'
MOVED = {"place": 0, "due_at": 1, "expires_at": 0, "lease_until": 0, "dead_at": 0, "tries": 0, "used": 0, "reason": ""}
HOT: dict[str, dict[str, Any]] = {
    **HOT_ON_BOTH,
    "heads_of": {"queues": ASKED},
    "queues_of": {"queues": ASKED},
    "count_due": {"queue": 1, "now": 20},
    "totals_of": {"queues": ASKED},
    "count_held": {"queue": 1, "ids": IDS, "leases": [(job_id, 1, 1) for job_id in IDS]},
    "move_jobs": {"queue": 1, "jobs": json.dumps([{"id": job_id, **MOVED} for job_id in IDS])},
    "set_aside_outbox_jobs": {"numbers": [1, 2, 3]},
    "announcements_since": {"last": 995, "missing": [990]},
}


@pytest.fixture(scope="module")
def session(mysql_server: MysqlServer, scale: int) -> Iterator[MysqlSession]:
    """A session as the store's own, on large tables whose statistics are fresh."""
    link = MysqlLink(MysqlAddress.parse(f"{mysql_server.url}&prefix={PREFIX}"), None)
    link.prepare_tables()
    names = ", ".join(f"{PREFIX}{table}" for table in TABLES)
    fill = FILL.replace("ROWS", str(ROWS_AT_SCALE_1 * scale**2)).split(";\n")
    mysql_server.administer("USE duetime", *filter(str.strip, fill), f"ANALYZE TABLE {names}")
    try:
        with closing(link.connect()) as opened:
            yield opened
    finally:
        mysql_server.administer("USE duetime", f"DROP TABLE {names}")


def rows_read(session: MysqlSession) -> int:
    """By seeks and by walks, in this session."""
    with session.connection.cursor() as cursor:
        cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
        return sum(int(count) for _, count in cursor.fetchall())


@pytest.mark.parametrize("name", HOT)
def test_a_hot_statement_reads_few_rows(session: MysqlSession, name: str) -> None:
    session.begin(read_only=False)
    before = rows_read(session)
    session.fetch([(name, HOT[name])])
    read = rows_read(session) - before
    session.rollback()
    assert read <= MOST_ROWS
