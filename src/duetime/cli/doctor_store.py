"""What the doctor asks every store, and every server: does it answer, how fast, and what time is it there?"""

import time
from collections.abc import Callable, Generator, Iterator
from importlib import import_module
from itertools import chain
from statistics import median
from typing import Any

from duetime.alerts.problems import describe as describe_alerts
from duetime.cli.doctor_checks import Check, Facts, Finding, Verdict, fail, judge, ok, warn
from duetime.cli.doctor_sqlite import examine_sqlite
from duetime.cli.options import Target
from duetime.client.store_link import on_store
from duetime.journal.registration import find_journaling, registered
from duetime.model.errors import DuetimeError, Forbidden, InvalidSettings, StoreUnavailable, Unauthorized
from duetime.model.humanise import span
from duetime.model.masking import mask
from duetime.model.names import is_mail
from duetime.model.settings import sqlite_file
from duetime.stores.base import Store

PINGS = 5
SLOW_MS = 20.0
SKEW_WARN_MS = 250.0
SKEW_FAIL_MS = 5_000.0

NO_JOBS = "no job can be pushed or delivered"
OFF_BY = "the store's clock decides what is due: a job pushed for an instant comes that far off"
NTP = "run an NTP client on both machines"


# fmt: off
def _speed(what: str) -> tuple[Verdict, Verdict]:
    return (
        ok(f"{what} in {{trip_ms:.1f}} ms", when=lambda f: f["trip_ms"] < SLOW_MS),
        warn(f"{what} in {{trip_ms:.1f}} ms", why="every push, reserve and ack waits that long at least",
             fix="bring it nearer, or find out what keeps it busy"),
    )


CLOCK = (
    ok("its clock agrees with this machine's within {skew}", when=lambda f: abs(f["skew_ms"]) < SKEW_WARN_MS),
    warn("its clock is {skew} {side} this machine's", when=lambda f: abs(f["skew_ms"]) < SKEW_FAIL_MS, why=OFF_BY,
         fix=NTP),
    fail("its clock is {skew} {side} this machine's", why=OFF_BY, fix=NTP),
)

IN_MEMORY = Check("store.durable",
    warn("the store is the memory of one process",
         why="its jobs end with the process, and no other process sees them",
         fix="use a file: sqlite:///var/lib/duetime/jobs.db"))

STORE_ERRORS = (
    Check("store.url",
        fail("{error.message}", when=lambda f: isinstance(f["error"], InvalidSettings),
             why="no server can start with it", fix="correct the store's URL")),
    Check("store.answers",
        fail("{url} does not answer: {error.message}", when=lambda f: not isinstance(f["error"], InvalidSettings),
             why=NO_JOBS, fix="start the store, or correct its URL; check firewalls and passwords")),
)

STORE = (
    Check("store.answers", *_speed("the store answers: {kind} {version}")),
    Check("store.clock", *CLOCK),
)
MEMBER = fail("{error.message}", why="pushes of its share are refused and its jobs wait; the other members work on",
              fix="bring it back; it is used again without a restart")
DAMAGED = Check("store.damaged",
    fail("entries that cannot be read as jobs were set aside: {damaged}", when=lambda f: f["damaged"],
         why="another program wrote to the store, or it is damaged; these jobs are not delivered",
         fix="list them with --deep; find out who wrote them; push their jobs again (`pipeline reconcile`)"),
    ok("no entry had to be set aside"))
PROGRAMS_WITHOUT_JOURNAL = Check("journal.programs",
    warn("process {node.pid} on {node.host} has no journal ({name})", when=lambda f: "node" in f,
         why="the pool journals, but changes by this program are missing from its journal: audit proves nothing until "
             "it stops",
         fix="restart it, without --journal off; if it was killed, name it with --assume-lost {name}"),
    ok("every program that changes jobs writes a journal"),
    rows=lambda f: [{"name": name, "node": node} for name, node in sorted(f["nodes"].items())])
ALERT_MAIL = Check("alerts.mail",
    warn("alerts cannot be mailed to {mails}: no mail server is set",
         when=lambda f: f["mails"] and not f["mail_server"],
         why="no notification is sent when a pool is down, space runs out or jobs fail",
         fix="duetime alert mail-server --host HOST --from ADDRESS, then duetime alert test"),
    ok("a mail server is set for the recipients of alerts", when=lambda f: f["mails"]))
DEEP = Check("store.check",
    fail("{problem}", when=lambda f: "problem" in f,
         why="a rule that always holds is broken: jobs may be lost, stuck or delivered twice",
         fix="make sure nothing else ran meanwhile and repeat; then keep a copy of the store and report it"),
    ok("every job is in exactly one place and the counts are right"),
    rows=lambda f: [{"problem": problem} for problem in f["problems"]])

SERVER_ERRORS = (
    Check("server.answers",
        fail("{url} does not answer: {error.message}", when=lambda f: isinstance(f["error"], StoreUnavailable),
             why=NO_JOBS, fix="start it with `duetime serve`, or give its address with --url or DUETIME_URL"),
        fail("{url} answers with an error: {error.message}",
             when=lambda f: not isinstance(f["error"], Unauthorized | Forbidden),
             why="it may not be a Duetime server, or one that is not well",
             fix="check the address; read the server's log")),
    Check("server.token",
        fail("{url} refuses the token: {error.message}",
             when=lambda f: isinstance(f["error"], Unauthorized | Forbidden),
             why="nothing can be done in the namespace {namespace}",
             fix="make one with `duetime token create --namespace {namespace}` and give it in DUETIME_TOKEN")),
)
SERVER = (
    Check("server.answers", *_speed("{url} answers")),
    Check("server.token", ok("it lets us into the namespace {namespace}")),
    Check("server.clock", *CLOCK),
    Check("store.check",
        warn("--deep was not done", when=lambda f: f["deep"],
             why="the walk needs the store itself, not the server in front of it",
             fix="run `duetime doctor --deep --url` with the store's URL, on a machine that reaches it")),
)
# fmt: on


def examine(target: Target, *, deep: bool) -> Iterator[Finding]:
    """The store or the server of a command."""
    return examine_store(target.store, deep=deep) if target.store else examine_server(target, deep=deep)


# --- a store

MODULES = {
    "redis": "redis",
    "rediss": "redis",
    "postgresql": "postgres",
    "postgres": "postgres",
    "mysql": "mysql",
    "mariadb": "mysql",
}
"""By the scheme of its URL, the module `doctor_...` that examines a database server. It imports the driver."""


def examine_store(url: str, *, deep: bool) -> Iterator[Finding]:
    scheme = url.partition(":")[0]
    if scheme == "memory":
        yield from judge([IN_MEMORY], {})
        return
    if file := sqlite_file(url):
        yield from examine_sqlite(file, url, deep=deep)
        if not file.exists():
            return
    try:
        # Opening the store would create its tables.
        if (yield from _examine_database(scheme, url)):
            yield from on_store(url, lambda store: _ask_store(store, deep=deep))
    except DuetimeError as error:
        yield from judge(STORE_ERRORS, {"error": error, "url": mask(url)})


def _examine_database(scheme: str, url: str) -> Generator[Finding, None, bool]:
    """Returns False if the store's tables do not exist."""
    if (name := MODULES.get(scheme.partition("+")[0])) is None:
        return True
    try:
        examine: Callable[[str], Generator[Finding, None, bool]] = import_module(f"duetime.cli.doctor_{name}").examine
    except ModuleNotFoundError:
        return True  # the error of opening the store names the driver that is missing
    return (yield from examine(url))


async def _ask_store(store: Store, *, deep: bool) -> list[Finding]:
    findings = [*await _timed_pings(store), *judge([DAMAGED], {"damaged": await _damaged(store)})]
    if journaling := await find_journaling(store):
        nodes = {name: node for name, node in (await registered(store)).items() if node.lacks_entries(journaling.since)}
        findings += judge([PROGRAMS_WITHOUT_JOURNAL], {"nodes": nodes})
    alerts = await describe_alerts(store.registry)
    mails = ", ".join(filter(is_mail, [*alerts["addresses"], *alerts["channels"].values()]))
    findings += judge([ALERT_MAIL], {"mails": mails, "mail_server": alerts["mail_server"]})
    return findings + ([*judge([DEEP], {"problems": await store.check()})] if deep else [])


async def _timed_pings(store: Store) -> list[Finding]:
    trips: list[float] = []
    skews: list[float] = []
    info = await store.ping()  # the first one may have to connect
    for _ in range(PINGS):
        before_ms, started = time.time_ns() / 1_000_000, time.perf_counter()
        info = await store.ping()
        skews.append(info.now - (before_ms + (time.perf_counter() - started) * 500))
        started = time.perf_counter()
        await store.registry.get("doctor", "doctor")  # SQLite answers a ping from memory
        trips.append((time.perf_counter() - started) * 1000)
    facts: Facts = {"kind": info.kind, "version": info.version, "trip_ms": median(trips), **skew_facts(median(skews))}
    missing = (judge([Check(f"store.member.{name}", MEMBER)], {"error": e}) for name, e in info.problems.items())
    return [*judge(STORE, facts), *chain.from_iterable(missing)]


async def _damaged(store: Store) -> str:
    queues = await store.queues()
    counted = zip(queues, await store.counts(queues), strict=True)
    return ", ".join(f"{queue} ({counts.damaged})" for queue, counts in counted if counts.damaged)


def skew_facts(skew_ms: float) -> dict[str, Any]:
    """The store's clock against ours; half a round trip of doubt is well below what counts."""
    side = "ahead of" if skew_ms > 0 else "behind"
    return {"skew_ms": skew_ms, "skew": span(max(1, abs(skew_ms))), "side": side}


# --- a server


def examine_server(target: Target, *, deep: bool) -> Iterator[Finding]:
    facts = {"url": mask(target.address), "namespace": target.space, "deep": deep}
    try:
        with target.connect() as client:
            queue = client.queue("doctor")  # only read, which does not create it
            queue.status()
            before_ms, started = time.time_ns() / 1_000_000, time.perf_counter()
            now = queue.status().counts.now
            trip_ms = (time.perf_counter() - started) * 1000
    except DuetimeError as error:
        yield from judge(SERVER_ERRORS, {**facts, "error": error})
        return
    yield from judge(SERVER, {**facts, "trip_ms": trip_ms, **skew_facts(now - (before_ms + trip_ms / 2))})
