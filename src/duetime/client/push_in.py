"""Push jobs in a transaction of your own database: they exist if and only if you commit.

    with psycopg.connect(...) as connection:
        connection.execute("UPDATE orders SET paid = true WHERE id = 7")
        duetime.push_in(connection, "mail", [{"order": 7}], delay="10m")

For the database in which Duetime keeps its jobs. The jobs are written to the table `outbox`, which the servers
poll every second: one of them moves the jobs into their queue and records them in its journal, then consumers get them.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict, Unpack, cast

from duetime.client import checks
from duetime.client.job_building import Body, IfExistsWord, JobFields, as_jobs
from duetime.engine.requests import PushRequest
from duetime.model.clock import SystemClock
from duetime.model.errors import BodyTooLarge, ExpiresBeforeDue, InvalidRequest, QueueFull, TopicOffline
from duetime.model.ids import ThreadedIdMaker
from duetime.model.job import MAX_BODY, IfExists, NewJob
from duetime.model.names import DEFAULT_NAMESPACE, Queue, check_queue
from duetime.stores.base import Push
from duetime.stores.sql.outbox import OutboxStatements, outbox_statements
from duetime.stores.sql.rows import as_json

DIALECTS = {
    "psycopg": "postgres",
    "psycopg2": "postgres",
    "postgresql": "postgres",
    "pymysql": "mysql",
    "MySQLdb": "mysql",
    "mysql": "mysql",
    "mariadb": "mysql",
}
"""From a driver's package, or from what SQLAlchemy and Django call a database, to the name of a store."""

_make_id = ThreadedIdMaker().make
_clock = SystemClock()


class PushInOptions(JobFields, total=False):
    """The options of plain bodies, and where the store's tables are, as in its URL."""

    namespace: str
    schema: str
    prefix: str
    if_exists: IfExists | IfExistsWord
    wake: bool


class _Place(TypedDict, total=False):
    schema: str
    prefix: str


class PushInRequest(NamedTuple):
    """Jobs that have passed the checks which need no database."""

    queue: Queue
    jobs: Sequence[NewJob]
    if_exists: IfExists
    wake: bool
    place: _Place


def push_in(
    connection: Any, queue: str, jobs: Iterable[Body | NewJob], /, **options: Unpack[PushInOptions]
) -> list[str]:
    """Push jobs in the transaction of the connection. Returns their ids.

    `connection` is a connection of psycopg, PyMySQL or Django, or a Connection or Session of SQLAlchemy. A NewJob has
    its own options; a plain body gets `options`. If a job's id exists when a server imports it, the existing job is
    kept, or replaced with `if_exists`.

    `schema` and `prefix` are those of the store's URL; on MariaDB and MySQL `schema` names the database of the tables,
    if it is not that of the connection. With `wake` the commit notifies the servers, which takes a lock on the whole
    server on PostgreSQL; without it they find the jobs within a second. Raises the same errors as a push.
    """
    if _is_async(connection):
        raise InvalidRequest("connection of push_in must be a blocking one; for this one use await push_in_async(...)")
    return _push(connection, _request(queue, jobs, options))


async def push_in_async(
    connection: Any, queue: str, jobs: Iterable[Body | NewJob], /, **options: Unpack[PushInOptions]
) -> list[str]:
    """Like `push_in`, for an async connection of psycopg, or an AsyncConnection or AsyncSession of SQLAlchemy."""
    if not _is_async(connection):
        raise InvalidRequest("connection of push_in_async must be an async one; for this one use push_in(...)")
    request = _request(queue, jobs, options)
    if hasattr(connection, "run_sync"):
        return await connection.run_sync(_push, request)
    statements = _statements(connection, request)
    async with _cursor(connection) as cursor:
        await cursor.execute(statements.rules, request.queue._asdict())
        _check_rules(request, await cursor.fetchone())
        await cursor.executemany(statements.insert, _rows(request))
        if request.wake:
            await cursor.execute(statements.notify)
    return [job.id for job in request.jobs]


def _is_async(connection: Any) -> bool:
    return hasattr(connection, "__aenter__")


def _request(queue: str, jobs: Iterable[Body | NewJob], options: PushInOptions) -> PushInRequest:
    fields = cast(dict[str, Any], dict(options))
    name = check_queue(fields.pop("namespace", DEFAULT_NAMESPACE), queue)
    if_exists, wake = checks.if_exists(fields.pop("if_exists", IfExists.KEEP)), fields.pop("wake", False)
    place = cast(_Place, {word: fields.pop(word) for word in ("schema", "prefix") if word in fields})
    if if_exists is IfExists.ERROR:
        raise InvalidRequest("push_in keeps or replaces a job whose id exists; it cannot know that yet")
    made = list(as_jobs(jobs, cast(JobFields, fields), _make_id))
    PushRequest(name, Push(made, if_exists)).check(MAX_BODY)
    now = _clock.now_ms()
    for job in made:
        if job.ttl_ms and job.due(now) > now + job.ttl_ms:
            raise ExpiresBeforeDue.of(job.id)
        if job.born or job.attempt:
            raise InvalidRequest(f"job {job.id!r} cannot have a born or an attempt: the store gives them")
    return PushInRequest(name, made, if_exists, wake, place)


def _push(connection: Any, request: PushInRequest) -> list[str]:
    statements = _statements(connection, request)
    if hasattr(connection, "get_bind"):  # a Session of SQLAlchemy
        connection = connection.connection()
    if hasattr(connection, "exec_driver_sql"):
        _check_rules(request, connection.exec_driver_sql(statements.rules, request.queue._asdict()).fetchone())
        connection.exec_driver_sql(statements.insert, _rows(request))
        if request.wake:
            connection.exec_driver_sql(statements.notify)
    else:
        cursor = _cursor(connection)
        try:
            cursor.execute(statements.rules, request.queue._asdict())
            _check_rules(request, cursor.fetchone())
            cursor.executemany(statements.insert, _rows(request))
            if request.wake:
                cursor.execute(statements.notify)
        finally:
            cursor.close()
    return [job.id for job in request.jobs]


def _driver(connection: Any) -> str:
    return type(connection).__module__.partition(".")[0]


def _cursor(connection: Any) -> Any:
    """Rows of psycopg have the shape that the caller chose for the connection, unless the cursor is given another."""
    if _driver(connection) != "psycopg":
        return connection.cursor()
    from psycopg.rows import tuple_row  # noqa: PLC0415 (an optional driver)

    return connection.cursor(row_factory=tuple_row)


def _statements(connection: Any, request: PushInRequest) -> OutboxStatements:
    """Find out which database this is: Django and SQLAlchemy say it, a driver is known by its name."""
    bind = connection.get_bind() if hasattr(connection, "get_bind") else connection
    word = getattr(bind, "vendor", None) or getattr(getattr(bind, "dialect", None), "name", None)
    word = word or _driver(connection)
    if word not in DIALECTS:
        raise InvalidRequest(f"push_in does not know connections of {word}; it knows {', '.join(sorted(DIALECTS))}")
    return outbox_statements(DIALECTS[word], **request.place)


def _check_rules(request: PushInRequest, row: Any) -> None:
    """Refuse what the queue refuses, as far as it is known now."""
    if row is None:
        return
    max_jobs, max_body, held, offline = tuple(
        cast(Mapping[str, int], row).values() if isinstance(row, Mapping) else row
    )
    if offline:
        raise TopicOffline.of_queue()
    for job in request.jobs:
        if max_body and len(job.body) > max_body:
            raise BodyTooLarge.of(job.id, len(job.body), max_body)
    if max_jobs and held + len(request.jobs) > max_jobs:
        raise QueueFull.of(max_jobs)


def _rows(request: PushInRequest) -> list[dict[str, object]]:
    return [
        {
            "namespace": request.queue.namespace,
            "name": request.queue.name,
            "id": job.id,
            "if_exists": request.if_exists.value,
            "priority": int(job.priority),
            "due_at": job.due_at,
            "delay_ms": job.delay_ms,
            "ttl_ms": job.ttl_ms,
            "tries": job.tries,
            "attributes": as_json(job.attributes) if job.attributes else None,
            "body": job.body,
        }
        for job in request.jobs
    ]
