"""The view of jobs for people on MariaDB: times far ahead, bodies that are no text, and rows that are odd."""

from collections.abc import AsyncIterator
from contextlib import closing
from datetime import datetime, timedelta
from typing import Any

import pytest
from pymysql.cursors import DictCursor

from duetime.model.clock import MAX_INSTANT
from duetime.model.job import NewJob
from duetime.model.names import Queue
from duetime.stores.base import Push
from duetime.stores.mysql.store import MysqlStore
from tests.plugins.mysql_server import PREFIX, MysqlServer

pytestmark = pytest.mark.store_kind("mysql")

QUEUE = Queue("shop", "mail")
TIMES = ("due_at", "expires_at", "lease_until", "dead_at")


@pytest.fixture
async def store(mysql_url: str) -> AsyncIterator[MysqlStore]:
    opened = await MysqlStore.open(mysql_url)
    yield opened
    await opened.close()


def view(server: MysqlServer, *, hours: int = 0) -> dict[str, dict[str, Any]]:
    """Its rows by their ids, in a session that is so many hours ahead of UTC."""
    with closing(server.root()) as connection, connection.cursor(DictCursor) as cursor:
        cursor.execute(f"SET time_zone = '{hours:+03}:00', sql_mode = 'STRICT_ALL_TABLES'")
        cursor.execute(f"SELECT * FROM duetime.{PREFIX}readable_jobs")
        return {row["id"]: row for row in cursor.fetchall()}


@pytest.mark.parametrize("hours", [0, 13, -12])
async def test_times_are_those_of_the_session_also_after_2038(
    hours: int, store: MysqlStore, mysql_server: MysqlServer
) -> None:
    instants = {
        "soon": 2_000_000_000_123,
        "before": 2_147_483_646_999,
        "end": 2_147_483_647_000,
        "after": 2_147_483_647_001,
        "far": 32_503_680_000_000,
    }
    await store.push(QUEUE, [Push([NewJob(job_id, b"", due_at=at) for job_id, at in instants.items()])])
    jobs = view(mysql_server, hours=hours)
    epoch = datetime(1970, 1, 1) + timedelta(hours=hours)
    shown = {job_id: epoch + timedelta(milliseconds=at) for job_id, at in instants.items()}
    assert {job_id: row["due_at"] for job_id, row in jobs.items()} == shown
    assert {row[column] for row in jobs.values() for column in TIMES[1:]} == {None}


@pytest.mark.parametrize("hours", [0, 13, -12])
async def test_a_row_with_odd_times_is_shown_with_the_nearest_ones(
    hours: int, store: MysqlStore, mysql_server: MysqlServer
) -> None:
    await store.push(QUEUE, [Push([NewJob("last", b"", due_at=MAX_INSTANT), NewJob("odd", b""), NewJob("old", b"")])])
    for job_id, value in {"odd": 2**62, "old": -(2**62)}.items():
        changes = ", ".join(f"{column} = {value}" for column in TIMES)
        mysql_server.administer(f"UPDATE duetime.{PREFIX}jobs SET {changes} WHERE id = '{job_id}'")
    jobs = view(mysql_server, hours=hours)
    assert jobs["last"]["due_at"].year == 9999
    assert [jobs["odd"][column].year for column in TIMES] == [9999] * 4
    assert jobs["old"]["due_at"] == datetime(1970, 1, 1) + timedelta(hours=hours)
    assert jobs["odd"]["available_at"] == 2**62 // 1000


async def test_a_body_is_text_only_if_the_text_has_the_same_bytes(store: MysqlStore, mysql_server: MysqlServer) -> None:
    texts = ["", "??ab", "a\0b", "Grüße ", "\N{GRINNING FACE}", "\N{REPLACEMENT CHARACTER}"]
    others = [b"\xff\xfeab", b"ab\xc3", b"\xc0\x80", b"\xed\xa0\x80", "Grüße".encode("latin-1"), b"\xf5\x80\x80\x80"]
    bodies = [*(text.encode() for text in texts), *others]
    await store.push(QUEUE, [Push([NewJob(f"{number:02}", body) for number, body in enumerate(bodies)])])
    jobs = sorted(view(mysql_server).items())
    assert [row["body"] for _, row in jobs] == bodies
    assert [row["payload"] for _, row in jobs] == [*texts, *(None for _ in others)]
