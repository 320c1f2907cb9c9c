"""`duetime bridge`: the queues of a running Laravel, Redisson, lmstfy or php-delayqueue."""

import dataclasses
import signal
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

import typer

from duetime.bridges.foreign import BridgeOptions, ForeignQueues, Sizes, open_foreign
from duetime.bridges.relay import PushCall, Relay, bury
from duetime.cli.options import Target, argument, file_exists, flag, option
from duetime.cli.output import note, safe
from duetime.cli.progress import show_progress
from duetime.client import calls
from duetime.client.client import LeasedJob
from duetime.client.topics import Topics
from duetime.model.clock import duration_ms
from duetime.model.errors import DuetimeError, InvalidName, InvalidRequest, TopicExists
from duetime.model.humanise import span
from duetime.model.job import NewJob
from duetime.model.names import Queue, check_queue


class System(StrEnum):
    LARAVEL = "laravel"
    REDISSON = "redisson"
    LMSTFY = "lmstfy"
    DELAYQUEUE = "delayqueue"


@dataclass(frozen=True)
class ForeignPlace:
    """Where the other system keeps its jobs."""

    system: Annotated[System, argument(None, "laravel, redisson, lmstfy or delayqueue (php-delayqueue).")]
    source: Annotated[
        str, option("URL", "Its Redis (redis://...) or, for Laravel, its database (postgresql://, mysql://).", "--from")
    ]
    prefix: Annotated[str | None, option("TEXT", "The prefix of its keys: laravel_database_ (up to 12), dq_, ...")] = (
        None
    )
    retry_after: Annotated[
        str, option("DURATION", "Laravel: its setting retry_after, the length of a reservation.")
    ] = "90s"
    handler: Annotated[
        str | None, option("CLASS@METHOD", "Laravel: the PHP handler for jobs of ours that are no tasks.")
    ] = None
    buckets: Annotated[int, option("N", "php-delayqueue: its number of buckets.", min=1)] = 2

    def opened(self) -> closing[ForeignQueues]:
        options = BridgeOptions(self.prefix, self.retry_after, self.handler, self.buckets)
        return closing(open_foreign(self.system, self.source, options))


@dataclass(frozen=True)
class Direction:
    queue: Annotated[str, option("NAME", "The other system's queue (lmstfy: namespace/queue).")]
    to: Annotated[str | None, option("NAME", "The queue here; the same name if not given.")] = None

    def ours(self, namespace: str) -> Queue:
        try:
            return check_queue(namespace, self.to or self.queue.rpartition("/")[2])
        except InvalidName as error:
            if not self.to:
                error.message += "; name the queue here with --to"
            raise


def list_queues(place: ForeignPlace, target: Target) -> None:
    """List the queues of another system, with their sizes and lateness.

    Reads only. Sizes of lmstfy and php-delayqueue are counted entry by entry, which takes a while with many jobs.

    Examples:
        duetime bridge list laravel --from redis://localhost --prefix laravel_database_
        duetime bridge list laravel --from postgresql://app@db/shop --json
        duetime bridge list redisson --from redis://localhost
    """
    with place.opened() as foreign:
        _show(foreign, target)


def watch(
    place: ForeignPlace,
    target: Target,
    interval: Annotated[str, option("DURATION", "How often to look.")] = "2s",
    count: Annotated[int, option("N", "End after N times; 0: when interrupted.", min=0)] = 0,
) -> None:
    """Show the queues of another system again and again.

    Examples:
        duetime bridge watch redisson --from redis://localhost --interval 5s
    """
    pause_s, times = duration_ms(interval) / 1000, 0
    with place.opened() as foreign, interrupts() as stopped:
        while not stopped():
            _show(foreign, target)
            times += 1
            if times == count:
                return
            _sleep(pause_s, stopped)


def _show(foreign: ForeignQueues, target: Target) -> None:
    found = foreign.list_sizes(foreign.names()).items()
    target.answer.table(
        [{"queue": name, **_document(sizes)} for name, sizes in found],
        {
            "queue": [name for name, _ in found],
            "ready ": [f"{sizes.ready:,}" for _, sizes in found],
            "delayed ": [f"{sizes.delayed:,}" for _, sizes in found],
            "reserved ": [f"{sizes.reserved:,}" for _, sizes in found],
            "held ": [f"{sizes.held:,}" for _, sizes in found],
            "set aside ": [f"{sizes.quarantined:,}" for _, sizes in found],
            "late ": [_late(sizes) for _, sizes in found],
        },
        nothing="no queues found; check --prefix",
    )


def _document(sizes: Sizes) -> dict[str, Any]:
    return {
        "ready": sizes.ready,
        "delayed": sizes.delayed,
        "reserved": sizes.reserved,
        "held": sizes.held,
        "set_aside": sizes.quarantined,
        "oldest_due_at": sizes.oldest_due_at,
    }


def _late(sizes: Sizes) -> str:
    late_ms = 0 if sizes.oldest_due_at is None else time.time() * 1000 - sizes.oldest_due_at
    return span(late_ms) if late_ms > 0 else "-"


def relay(
    place: ForeignPlace,
    direction: Direction,
    target: Target,
    back: Annotated[
        bool, flag("From Duetime to the other system: jobs that are due here run there.", "--back")
    ] = False,
) -> None:
    """Move jobs continuously from another system to Duetime, or back.

    A job is removed there only after it was accepted here. A relay that is killed loses and repeats nothing: the next
    one continues with the jobs that were being moved. Delayed jobs are moved immediately and keep their due times. A
    job that Duetime refuses (its body is too large, for example) is named and stays there. Stop it with Ctrl-C.

    Examples:
        duetime bridge relay laravel --from redis://localhost --prefix laravel_database_ --queue default --to mail
        duetime bridge relay laravel --from redis://localhost --queue default --back --handler Run@fire
        duetime bridge relay redisson --from redis://localhost --queue mail
    """
    _move(place, direction, target, follow=True, back=back)


def drain(
    place: ForeignPlace,
    direction: Direction,
    target: Target,
    dry_run: Annotated[bool, flag("Only show what would be moved.", "--dry-run")] = False,
) -> None:
    """Move all jobs of another system's queue to Duetime, then end.

    Reserved jobs of running workers stay there: run it again after they have ended. The exit code is 1 if something
    is left.

    Examples:
        duetime bridge drain laravel --from redis://localhost --queue default --dry-run
        duetime bridge drain lmstfy --from redis://localhost:6380 --queue shop/mail --to mail --namespace shop
        duetime bridge drain delayqueue --from redis://localhost --queue recall
    """
    if dry_run:
        with place.opened() as foreign:
            sizes = foreign.sizes(direction.queue)
        text = f"{direction.queue}: {sizes.ready:,} ready, {sizes.delayed:,} delayed, {sizes.reserved:,} reserved"
        text += f", {sizes.held:,} held by a relay" if sizes.held else ""
        target.answer.show({"queue": direction.queue, **_document(sizes)}, text)
        return
    left = _move(place, direction, target, follow=False)
    if left.total:
        raise typer.Exit(1)


def _move(place: ForeignPlace, direction: Direction, target: Target, *, follow: bool, back: bool = False) -> Sizes:
    if back and place.system not in (System.LARAVEL, System.REDISSON):
        raise InvalidRequest(f"jobs cannot be relayed to {place.system}: its clients work with Duetime's server")
    ours = direction.ours(target.space)
    refused: list[str] = []

    place_of_refused = ours if back else direction.queue

    def refuse(job: NewJob | LeasedJob, reason: str) -> None:
        refused.append(job.id)
        note(f"job {safe(job.id)} was refused and stays in {safe(str(place_of_refused))}: {safe(reason)}")

    with (
        place.opened() as foreign,
        target.connect(new=not back) as client,
        interrupts() as stopped,
        show_progress("relaying", as_json=target.json, unit="jobs") as progress,
    ):
        moving = Relay(
            foreign, client, report=progress.advance_to, refuse=refuse, stop=stopped,
            wait=lambda reason: note(f"waiting: {safe(reason)}"),
        )  # fmt: skip
        try:
            if back:
                moved = moving.from_duetime(ours, direction.queue, follow=follow)
            else:
                moved = moving.to_duetime(direction.queue, ours, follow=follow)
        except DuetimeError as error:
            error.message = f"{error.message}. Nothing was lost: run the same command again"
            raise
        left = foreign.sizes(direction.queue)
    names = (str(ours), direction.queue) if back else (direction.queue, str(ours))
    text = f"{moved:,} jobs moved from {names[0]} to {names[1]}"
    if not back and left.total:
        text += f"; {left.total:,} are left there, {left.reserved:,} of them reserved"
    elif not back and not moved:
        text += "; the queue is empty or does not exist"
    if refused:
        text += f"; {len(refused):,} were refused"
    target.answer.show(
        {"moved": moved, "from": names[0], "to": names[1], "left": _document(left), "refused": refused}, text
    )
    return left


@contextmanager
def interrupts() -> Generator[Any]:
    """A function that answers whether TERM or INT came. The batch under way is finished first."""
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _sleep(seconds: float, stopped: Any) -> None:
    deadline = time.monotonic() + seconds
    while not stopped() and (left := deadline - time.monotonic()) > 0:
        time.sleep(min(left, 0.2))


@dataclass(frozen=True)
class ImportOptions:
    queue: Annotated[list[str], option("NAME", "Only this queue (lmstfy: namespace/queue); repeatable.")] = field(
        default_factory=list[str]
    )
    settings_from: Annotated[
        str | None,
        option(
            "URL", "lmstfy: its AdminRedis, with the tokens and limits. php-delayqueue: its MySQL, with the topics."
        ),
    ] = None
    dry_run: Annotated[bool, flag("Only show what would be imported.", "--dry-run")] = False


@dataclass
class ImportedQueue:
    """Jobs and dead letters of one queue. Those that Duetime refused stay there and are also among `left`."""

    theirs: str
    ours: Queue
    found: int
    found_dead: int = 0
    moved: int = 0
    moved_dead: int = 0
    refused: int = 0
    left: int = 0
    arrived: int = 0

    @property
    def is_verified(self) -> bool:
        """Nothing is left but what was refused, and the queue here has grown by what was moved."""
        return self.left == self.refused and self.arrived == self.moved + self.moved_dead

    @property
    def document(self) -> dict[str, Any]:
        fields = dataclasses.asdict(self) | {"ours": str(self.ours)}
        return fields | {"verified": self.is_verified}


def import_all(place: ForeignPlace, options: ImportOptions, target: Target) -> None:
    """Move all queues of another system to Duetime, then end.

    Jobs keep their ids, due times, tries and time to live. lmstfy's namespaces and dead letters are moved; dead
    letters need the store itself as --url. With --settings-from, tokens and limits (lmstfy) or topics (php-delayqueue)
    are created first; those that exist here stay as they are. It can be interrupted and run again.

    The exit code is 1 if the counts do not match: something is left there, or a queue here has not grown by what was
    moved, because its consumers are running, for example. A queue whose name is not allowed here is named and stays
    there: drain it with --to.

    Examples:
        duetime bridge import lmstfy --from redis://old --settings-from redis://old --url redis://new --dry-run
        duetime bridge import lmstfy --from redis://old --settings-from redis://old --url redis://new
        duetime bridge import delayqueue --from redis://old --settings-from mysql://dq@db/dq --url redis://new
    """
    if options.settings_from and place.system not in (System.LMSTFY, System.DELAYQUEUE):
        raise InvalidRequest(f"--settings-from must not be given for {place.system}: it has no tokens and no topics")
    with place.opened() as foreign, _dead_letters(place) as dead, interrupts() as stopped:
        names = options.queue or list(foreign.names())
        sizes, queues = foreign.list_sizes(names), list[ImportedQueue]()
        for name in names:
            try:
                ours = _ours(place.system, name, target)
            except InvalidName as error:
                note(f"queue {safe(name)} stays there: {error.message}; use `duetime bridge drain --to`")
                continue
            found_dead = dead.sizes(name).ready if dead else 0
            queues.append(ImportedQueue(name, ours, sizes[name].total, found_dead))
        settings, finish = _import_settings(place, options, target)
        if not options.dry_run:
            total = sum(one.found + one.found_dead for one in queues)
            with show_progress("importing", as_json=target.json, total=total, unit="jobs") as progress:
                for one in queues:
                    if not stopped():
                        _import_queue(
                            one, foreign, dead, target, stopped,
                            lambda: progress.advance_to(sum(one.moved + one.moved_dead for one in queues)),
                        )  # fmt: skip
            finish()
    _show_imported(queues, settings, target, options)
    if not options.dry_run and not (len(queues) == len(names) and all(one.is_verified for one in queues)):
        raise typer.Exit(1)


def _dead_letters(place: ForeignPlace) -> AbstractContextManager[ForeignQueues | None]:
    if place.system is not System.LMSTFY:
        return nullcontext()
    from duetime.bridges.lmstfy import LmstfyDeadLetters  # noqa: PLC0415 (needs a driver of its own)

    return closing(LmstfyDeadLetters(place.source))


def _ours(system: System, name: str, target: Target) -> Queue:
    """lmstfy's namespaces keep their names, unless one is given."""
    space, _, queue = name.rpartition("/") if system is System.LMSTFY else ("", "", name)
    return check_queue(target.namespace or space or target.space, queue)


def _import_queue(
    one: ImportedQueue,
    foreign: ForeignQueues,
    dead: ForeignQueues | None,
    target: Target,
    stopped: Callable[[], bool],
    advance: Callable[[], None],
) -> None:
    def refuse(job: NewJob | LeasedJob, reason: str) -> None:
        one.refused += 1
        note(f"job {safe(job.id)} was refused and stays in {safe(one.theirs)}: {reason}")

    def move(source: ForeignQueues, push: PushCall, counter: str) -> None:
        def report(count: int) -> None:
            setattr(one, counter, count)
            advance()

        relay = Relay(source, client, push=push, report=report, refuse=refuse, stop=stopped)
        relay.to_duetime(one.theirs, one.ours, follow=False)

    with dataclasses.replace(target, namespace=one.ours.namespace).connect(new=True) as client:
        here = client.queue(one.ours.name)
        before = here.counts().total
        move(foreign, calls.push, "moved")
        if dead:
            move(dead, bury, "moved_dead")
        one.arrived = here.counts().total - before
    one.left = foreign.sizes(one.theirs).total + (dead.sizes(one.theirs).ready if dead else 0)


def _show_imported(
    queues: list[ImportedQueue], settings: dict[str, int], target: Target, options: ImportOptions
) -> None:
    columns = {
        "queue": [safe(one.theirs) for one in queues],
        "to": [str(one.ours) for one in queues],
        "jobs ": [f"{one.found:,}" for one in queues],
        "dead ": [f"{one.found_dead:,}" for one in queues],
    }
    if not options.dry_run:
        columns |= {
            "moved ": [f"{one.moved:,}" for one in queues],
            "dead moved ": [f"{one.moved_dead:,}" for one in queues],
            "left ": [f"{one.left:,}" for one in queues],
            "counts": ["match" if one.is_verified else "differ" for one in queues],
        }
    target.answer.table([one.document for one in queues], columns, nothing="no queues found; check --from and --prefix")
    for name, count in settings.items():
        note(f"{count:,} {name}{' to create' if options.dry_run else ' created'}")


# --- topics and tokens


def _import_settings(
    place: ForeignPlace, options: ImportOptions, target: Target
) -> tuple[dict[str, int], Callable[[], None]]:
    """Returns how many of each kind were created, and what to do after the jobs have come."""
    if not options.settings_from:
        return {}, lambda: None
    if place.system is System.LMSTFY:
        return _import_tokens(options.settings_from, target, dry_run=options.dry_run), lambda: None
    return _import_topics(options.settings_from, target, dry_run=options.dry_run)


def _import_tokens(url: str, target: Target, *, dry_run: bool) -> dict[str, int]:
    from duetime.bridges.lmstfy import Lmstfy  # noqa: PLC0415 (needs a driver of its own)
    from duetime.cli.tokens import NamespaceTokens  # noqa: PLC0415 (imports the whole server)
    from duetime.protocols.rate_limits import Limit  # noqa: PLC0415
    from duetime.protocols.tokens import LABEL, Access, digest_of  # noqa: PLC0415

    lmstfy = Lmstfy(url)
    found = lmstfy.tokens()
    lmstfy.close()
    created = {"tokens": 0, "limits": 0}
    is_new = dry_run and not file_exists(target.admin_address)
    for token in found:
        here = NamespaceTokens(dataclasses.replace(target, namespace=token.namespace), token.pool, new=True)
        label = digest_of(token.secret)[:LABEL]
        if is_new or label not in {one.label for one in here.list_tokens()}:
            created["tokens"] += 1
            if not dry_run:
                here.create(token.description, frozenset(Access), token.secret)
        is_limited = any(token.limit.get(side, 0) > 0 for side in ("read", "write"))
        if is_limited and (is_new or label not in here.list_limits()):
            created["limits"] += 1
            if not dry_run:
                limit = Limit(*(token.limit.get(name, 0) for name in ("interval", "read", "write")))
                here.set_limit(label, limit)
    return created


def _import_topics(url: str, target: Target, *, dry_run: bool) -> tuple[dict[str, int], Callable[[], None]]:
    from duetime.bridges.delayqueue import read_topics  # noqa: PLC0415 (needs a driver of its own)

    theirs = read_topics(url)
    if dry_run and not file_exists(target.address):
        return {"topics": len(theirs)}, lambda: None
    created: list[str] = []
    offline: list[str] = []
    with target.connect(new=True) as client:
        topics = Topics(client)
        known = {topic.topic for topic in topics.list_topics()}
        for topic in theirs:
            if topic.key in known:
                continue
            try:
                if not dry_run:
                    topics.add(topic.key, topic.callback, **topic.fields)
            except TopicExists:
                continue
            except DuetimeError as error:
                note(f"topic {safe(topic.key)} was refused: {error.message}")
                continue
            created.append(topic.key)
            if not topic.is_online:
                offline.append(topic.key)

    def finish() -> None:
        """A topic that is offline takes no jobs, so it goes offline after they have come."""
        if offline:
            with target.connect() as client:
                for key in offline:
                    Topics(client).offline(key)

    return {"topics": len(created)}, finish
