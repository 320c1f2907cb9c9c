"""What the doctor asks every store, and every server: does it answer, how fast, and what time is it there?"""

import asyncio
import time
from collections.abc import Generator, Iterator
from statistics import median

from duetime.cli.doctor_findings import Finding, fail, ok, warn
from duetime.cli.doctor_mysql import examine_mysql, has_mysql_tables
from duetime.cli.doctor_postgres import examine_postgres, has_postgres_tables
from duetime.cli.doctor_redis import examine_redis
from duetime.cli.doctor_sqlite import examine_sqlite, sqlite_file
from duetime.cli.options import Target
from duetime.cli.output import span
from duetime.client.transport import is_http
from duetime.errors import DuetimeError, Forbidden, InvalidSettings, StoreUnavailable, Unauthorized
from duetime.masking import mask
from duetime.stores.base import Store
from duetime.stores.open import open_store

PINGS = 5
SLOW_MS = 20.0
SKEW_WARN_MS = 250.0
SKEW_FAIL_MS = 5_000.0


def examine_address(target: Target, *, deep: bool) -> Iterator[Finding]:
    """A server or a store, whichever the URL names."""
    if is_http(target.address):
        yield from examine_server(target, deep=deep)
    else:
        yield from examine_store(target.address, deep=deep)


# --- a store


def examine_store(url: str, *, deep: bool) -> Iterator[Finding]:
    scheme = url.partition(":")[0]
    if scheme == "memory":
        yield warn(
            "store.durable",
            "the store is the memory of one process",
            why="its jobs end with the process, and no other process sees them",
            fix="use a file: sqlite:///var/lib/duetime/jobs.db",
        )
        return
    if scheme == "sqlite":
        yield from examine_sqlite(url, deep=deep)
        if not sqlite_file(url).exists():
            return
    try:
        if (yield from _examine_server(scheme, url)):
            yield from asyncio.run(_ask_store(url, deep=deep))
    except InvalidSettings as error:
        yield fail("store.url", error.message, why="no server can start with it", fix="correct the store's URL")
    except DuetimeError as error:
        yield fail(
            "store.answers",
            f"{mask(url)} does not answer: {error.message}",
            why="no job can be pushed or delivered",
            fix="start the store, or correct its URL; check firewalls and passwords",
        )


def _examine_server(scheme: str, url: str) -> Generator[Finding, None, bool]:
    """What is to be said about a kind of server; False if its tables are still to be made."""
    if scheme.startswith("redis"):
        yield from examine_redis(url)
    if scheme.startswith("postgres"):
        yield from examine_postgres(url)
        return has_postgres_tables(url)
    if scheme in ("mysql", "mariadb"):
        yield from examine_mysql(url)
        return has_mysql_tables(url)
    return True


async def _ask_store(url: str, *, deep: bool) -> list[Finding]:
    store = await open_store(url)
    try:
        findings = [*await _timed_pings(store), await _damage(store)]
        return findings + (await _walk(store) if deep else [])
    finally:
        await store.close()


async def _timed_pings(store: Store) -> list[Finding]:
    trips: list[float] = []
    skews: list[float] = []
    info = await store.ping()  # the first one may have to connect
    for _ in range(PINGS):
        before_ms, started = time.time_ns() / 1_000_000, time.perf_counter()
        info = await store.ping()
        trips.append((time.perf_counter() - started) * 1000)
        skews.append(info.now - (before_ms + trips[-1] / 2))
    answers = f"the store answers: {info.kind} {info.version}"
    missing = [
        fail(
            f"store.member.{name}",
            error.message,
            why="pushes of its share are refused and its jobs wait; the other members work on",
            fix="bring it back; it is used again without a restart",
        )
        for name, error in info.problems.items()
    ]
    return [_speed("store.answers", answers, median(trips)), judge_skew("store.clock", median(skews)), *missing]


async def _damage(store: Store) -> Finding:
    queues = await store.queues()
    counted = zip(queues, await store.counts(queues), strict=True)
    damaged = [f"{queue} ({counts.damaged})" for queue, counts in counted if counts.damaged]
    if not damaged:
        return ok("store.damaged", "no entry had to be set aside")
    return fail(
        "store.damaged",
        f"entries that cannot be read as jobs were set aside: {', '.join(damaged)}",
        why="somebody else wrote to the store, or it is damaged; these jobs are not delivered",
        fix="see where they are with --deep; find out who wrote them; push their jobs again (`pipeline reconcile`)",
    )


async def _walk(store: Store) -> list[Finding]:
    problems = await store.check()
    if not problems:
        return [ok("store.check", "every job is in exactly one place and the counts are right")]
    return [
        fail(
            "store.check",
            problem,
            why="a rule that always holds is broken: jobs may be lost, stuck or delivered twice",
            fix="make sure nothing else ran meanwhile and repeat; then keep a copy of the store and report it",
        )
        for problem in problems
    ]


# --- a server


def examine_server(target: Target, *, deep: bool) -> Iterator[Finding]:
    url = mask(target.address)
    try:
        with target.connect() as client:
            queue = client.queue("doctor")  # only looked at, which does not create it
            queue.status()
            before_ms, started = time.time_ns() / 1_000_000, time.perf_counter()
            now = queue.status().counts.now
            trip_ms = (time.perf_counter() - started) * 1000
    except StoreUnavailable as error:
        yield fail(
            "server.answers",
            f"{url} does not answer: {error.message}",
            why="no job can be pushed or delivered",
            fix="start it with `duetime serve`, or give its address with --url or DUETIME_URL",
        )
        return
    except (Unauthorized, Forbidden) as error:
        yield fail(
            "server.token",
            f"{url} refuses the token: {error.message}",
            why=f"nothing can be done in the namespace {target.space}",
            fix=f"make one with `duetime token create --namespace {target.space}` and give it in DUETIME_TOKEN",
        )
        return
    except DuetimeError as error:
        yield fail(
            "server.answers",
            f"{url} answers with an error: {error.message}",
            why="it may not be a Duetime server, or one that is not well",
            fix="check the address; look into the server's log",
        )
        return
    yield _speed("server.answers", f"{url} answers", trip_ms)
    yield ok("server.token", f"it lets us into the namespace {target.space}")
    yield judge_skew("server.clock", now - (before_ms + trip_ms / 2))
    if deep:
        yield warn(
            "store.check",
            "--deep was not done",
            why="the walk needs the store itself, not the server in front of it",
            fix="run `duetime doctor --deep --url` with the store's URL, on a machine that reaches it",
        )


def _speed(check: str, what: str, trip_ms: float) -> Finding:
    text = f"{what} in {trip_ms:.1f} ms"
    if trip_ms < SLOW_MS:
        return ok(check, text)
    return warn(
        check,
        text,
        why="every push, reserve and ack waits that long at least",
        fix="bring it nearer, or find out what keeps it busy",
    )


def judge_skew(check: str, skew_ms: float) -> Finding:
    """The store's clock against ours; half a round trip of doubt is well below what counts."""
    side = "ahead of" if skew_ms > 0 else "behind"
    what = f"its clock is {span(abs(skew_ms))} {side} this machine's"
    if abs(skew_ms) < SKEW_WARN_MS:
        return ok(check, f"its clock agrees with this machine's within {span(max(1, abs(skew_ms)))}")
    made = fail if abs(skew_ms) >= SKEW_FAIL_MS else warn
    return made(
        check,
        what,
        why="the store's clock decides what is due: a job pushed for an instant comes that far off",
        fix="run an NTP client on both machines",
    )
