"""Sessions on database servers: how many round trips the verbs take, and what happens to writes that are put off."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator

import psycopg
import pytest

from duetime.model.errors import LeaseLost, StoreDamaged, StoreUnavailable
from duetime.model.job import STEP_JOBS, Event, Lease, NewJob, State
from duetime.model.names import Queue
from duetime.stores.base import Ask, Mark, Push, Pushed, Wake
from duetime.stores.mysql.session import MysqlSession
from duetime.stores.open import open_store
from duetime.stores.postgres.session import PostgresSession, Statement, encode
from duetime.stores.sql.queries import MAX_CHANNEL, channel
from duetime.stores.sql.server_step import ServerSession
from duetime.stores.sql.server_store import ServerStore
from tests.plugins.mysql_server import PREFIX, MysqlServer
from tests.plugins.postgres_server import PostgresServer

STORE_KINDS = ["postgres", "mysql"]
QUEUE, OTHER = Queue("shop", "mail"), Queue("shop", "other")


@pytest.fixture
def end_sessions(store_kind: str, request: pytest.FixtureRequest) -> Callable[[], None]:
    """Ends the connections of all stores."""
    return request.getfixturevalue(f"{store_kind}_server").end_sessions  # type: ignore[no-any-return]


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[ServerStore]:
    opened = await open_store(store_url)
    assert isinstance(opened, ServerStore)
    yield opened
    assert list(await opened.check()) == []
    await opened.close()


@pytest.fixture
def round_trips(store_kind: str, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The names of the commands of each round trip from now on."""
    kind: type[ServerSession] = PostgresSession if store_kind == "postgres" else MysqlSession
    seen: list[list[str]] = []
    run = kind._run

    def noting(self: ServerSession, commands: list[tuple[str, dict[str, object]]]) -> object:
        if "announcer" not in threading.current_thread().name:
            seen.append([name for name, _ in commands])
        return run(self, commands)

    monkeypatch.setattr(kind, "_run", noting)
    return seen


async def push(store: ServerStore, *ids: str, queue: Queue = QUEUE, delay_ms: int = 0) -> Pushed:
    [answer] = await store.push(queue, [Push([NewJob(job_id, b"body", delay_ms=delay_ms) for job_id in ids])])
    assert isinstance(answer, Pushed), answer
    return answer


async def test_hot_verbs_take_few_round_trips(
    store: ServerStore, store_kind: str, round_trips: list[list[str]]
) -> None:
    single_statement = store_kind == "postgres"
    await push(store, "a", "b")
    round_trips.clear()

    await push(store, "c")
    if single_statement:
        assert round_trips == [["begin", "lock_queue_by_id", "push_one_single_statement", "commit"]]
    else:
        assert len(round_trips) == 2
        assert round_trips[0] == ["begin", "lock_queue", "heads", "find_jobs"]
        assert round_trips[1][-1] == "commit"
    round_trips.clear()

    [deliveries] = (await store.reserve(QUEUE, [Ask(10, 60_000)])).deliveries
    assert [delivery.lease.id for delivery in deliveries] == ["a", "b", "c"]
    assert len(round_trips) == (1 if single_statement else 3)
    round_trips.clear()

    await store.ack(QUEUE, [delivery.lease for delivery in deliveries])
    assert len(round_trips) == (1 if single_statement else 2)
    round_trips.clear()

    await store.counts([Queue("shop", str(number)) for number in range(50)])
    await store.totals([Queue("shop", str(number)) for number in range(50)])
    assert sum(len(commands) for commands in round_trips) <= 8


async def test_marks_are_read_together_with_the_lock(store: ServerStore, round_trips: list[list[str]]) -> None:
    await push(store, "a")
    requests = [Push([NewJob(f"b{at}", b"")], mark=Mark(f"mark {at}", b"digest", 60_000)) for at in range(20)]
    round_trips.clear()

    first = await store.push(QUEUE, requests)
    assert len(round_trips) == 2
    again = await store.push(QUEUE, [requests[0], requests[7]])
    assert [answer.repeated for answer in again if isinstance(answer, Pushed)] == [True, True]
    assert [answer.jobs for answer in again if isinstance(answer, Pushed)] == [first[0].jobs, first[7].jobs]  # type: ignore[union-attr]


async def test_a_queue_that_another_process_gave_a_new_id(store: ServerStore, store_url: str) -> None:
    await push(store, "old")
    other = await open_store(store_url)
    for first in range(0, STEP_JOBS + 1, STEP_JOBS):
        jobs = [NewJob(f"{first + number:05}", b"") for number in range(STEP_JOBS)]
        await other.push(QUEUE, [Push(jobs)])
    await other.purge(QUEUE, list(State))
    await other.push(QUEUE, [Push([NewJob("kept", b"of the other")])])
    await other.close()

    assert [moved.event for moved in (await push(store, "kept", "old")).jobs] == [Event.KEPT, Event.ACCEPTED]
    [deliveries] = (await store.reserve(QUEUE, [Ask(10, 60_000)])).deliveries
    assert sorted((delivery.lease.id, delivery.body) for delivery in deliveries) == [
        ("kept", b"of the other"),
        ("old", b"body"),
    ]
    await store.reap()


@pytest.fixture
def refused_id(store: ServerStore, store_kind: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """An id that the table of bodies refuses, as a full disk would: with a statement that was put off."""
    add = "ADD CONSTRAINT no_refused CHECK (id <> 'refused')"
    if store_kind == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(f"ALTER TABLE duetime.bodies {add}")
            yield "refused"
            connection.execute("ALTER TABLE duetime.bodies DROP CONSTRAINT no_refused")
    else:
        mysql: MysqlServer = request.getfixturevalue("mysql_server")
        mysql.administer(f"ALTER TABLE duetime.{PREFIX}bodies {add}")
        yield "refused"
        mysql.administer(f"ALTER TABLE duetime.{PREFIX}bodies DROP CONSTRAINT no_refused")


async def test_a_write_that_fails_on_its_way_with_the_commit(store: ServerStore, refused_id: str) -> None:
    await push(store, "a")
    with pytest.raises(StoreDamaged):
        await push(store, "b", refused_id)
    answers = await asyncio.gather(push(store, "c"), push(store, refused_id), push(store, "d"), return_exceptions=True)
    assert [type(answer) for answer in answers] == [Pushed, StoreDamaged, Pushed]
    [counts] = await store.counts([QUEUE])
    assert counts.ready == 3
    assert [job is not None for job in await store.get(QUEUE, ["a", "b", "c", "d"])] == [True, False, True, True]


# --- sessions that end


async def test_a_server_that_is_not_there(store_kind: str, free_port: int) -> None:
    scheme = "postgresql" if store_kind == "postgres" else store_kind
    with pytest.raises(StoreUnavailable, match="SQL cannot be used"):
        await open_store(f"{scheme}://127.0.0.1:{free_port}/app")


async def test_a_session_that_was_ended_costs_no_call(store: ServerStore, end_sessions: Callable[[], None]) -> None:
    await push(store, "a")
    for job_id in "bcd":
        end_sessions()
        await push(store, job_id)
    assert [count.ready for count in await store.counts([QUEUE])] == [4]


async def test_a_step_that_fails_among_others_fails_alone(store: ServerStore) -> None:
    await push(store, "a")
    lost = Lease(QUEUE, "a", 1, 1)
    answers = await asyncio.gather(
        *(store.release(lost, 0) for _ in range(3)), push(store, "b"), push(store, "c"), return_exceptions=True
    )
    assert [type(answer) for answer in answers] == [LeaseLost] * 3 + [Pushed] * 2
    assert [count.ready for count in await store.counts([QUEUE])] == [3]


async def test_a_listener_gets_wakes_again_after_its_session_was_ended(
    store: ServerStore, store_kind: str, store_url: str, end_sessions: Callable[[], None]
) -> None:
    other = await open_store(store_url)
    assert isinstance(other, ServerStore)
    wakes = aiter(store.wakeups())
    assert await anext(wakes) == Wake()
    await push(other, "first", delay_ms=5_000)
    while (await asyncio.wait_for(anext(wakes), 60)).queue != QUEUE:
        pass

    end_sessions()

    while store_kind == "postgres" and await asyncio.wait_for(anext(wakes), 60) != Wake():
        pass  # MySQL's listener reads announcements from a table, and misses none
    await push(other, "earlier", queue=OTHER)
    while (await asyncio.wait_for(anext(wakes), 60)).queue != OTHER:
        pass
    await wakes.aclose()  # type: ignore[attr-defined]
    await other.close()


# --- PostgreSQL's values


def test_parameters_are_numbered_in_their_order() -> None:
    statement = Statement.parse("SELECT %(b)s, %(a)b::text [] WHERE x = %(b)s")
    assert statement == (b"SELECT $1, $2::text [] WHERE x = $1", ("b", "a"))


@pytest.mark.store_kind("postgres")
@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (-(2**63), "bigint"),
        ("Grüße 'quoted' \\ {x,y}", "text"),
        ("", "text"),
        (b"\x00\xff", "bytea"),
        (None, "text"),
        ([1, -1, 2**62], "bigint[]"),
        (["", "NULL", "a\nb", None], "text[]"),
        ([None, None], "text[]"),
        ([b"", b"\x00"], "bytea[]"),
        ([], "bigint[]"),
        (list(range(1000)), "bigint[]"),
    ],
)
def test_values_come_back_as_they_were_sent(postgres_server: PostgresServer, value: object, kind: str) -> None:
    statements = {"echo": Statement.parse(f"SELECT %(value)b::{kind}")}
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        for prepares in (True, False):
            session = PostgresSession(connection, statements, prepares=prepares)
            for _ in range(2):
                assert session.fetch([("echo", {"value": value})]) == [[(value,)]]
            if prepares:
                connection.execute("DEALLOCATE ALL")


def test_a_value_of_another_kind_is_refused() -> None:
    with pytest.raises(TypeError):
        encode(1.5)


@pytest.mark.store_kind("postgres")
def test_a_megabyte_in_both_directions_at_the_same_time(postgres_server: PostgresServer) -> None:
    statements = {"echo": Statement.parse("SELECT %(value)b::bytea")}
    body = bytes(range(256)) * 16_384
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        session = PostgresSession(connection, statements, prepares=True)
        answers = session.fetch([("echo", {"value": body})] * 5)
    assert answers == [[(body,)]] * 5


def test_a_channel_has_a_name_of_its_own_however_long_the_schema_is() -> None:
    assert channel("duetime", "") == "duetime duetime."
    long = ["s" * 60 + end for end in "ab"] + ["ü" * 31]
    names = {channel(schema, prefix) for schema in long for prefix in ("", "a_")}
    assert len(names) == 6
    assert max(len(name.encode()) for name in names) <= MAX_CHANNEL
