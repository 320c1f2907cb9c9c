"""`duetime history ID` and `duetime journal ...`: what happened to a job, and the nodes that recorded it."""

import socket
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

from rich.text import Text

from duetime.cli.config import ConfigOption, read_settings
from duetime.cli.options import IdArgument, Target, YesOption, check_exists, option
from duetime.cli.output import EVENT_WORDS, note, preview, relative, safe
from duetime.client.store_link import on_store
from duetime.journal import registration
from duetime.journal.events import ENDS, REPEATED, Entry, as_fields, body_of
from duetime.journal.options import options_of
from duetime.journal.reader import Damage, lives_of, read_job
from duetime.journal.registration import RegisteredNode, registered
from duetime.journal.segments import is_alive, nodes, segments
from duetime.model.clock import SystemClock, rfc3339
from duetime.model.errors import InvalidSettings, JobNotFound, NotFound
from duetime.model.humanise import span
from duetime.model.job import Event, Priority
from duetime.model.masking import mask
from duetime.model.names import DEFAULT_POOL
from duetime.stores.base import Store

QueueOption = Annotated[str | None, option("NAME", "Only this queue.")]
JournalOption = Annotated[
    str | None, option("DIR", "The journal's folder; else as the server's settings say.", "--journal")
]


def list_nodes(target: Target, journal: JournalOption = None, config: ConfigOption = None) -> None:
    """List the nodes of the journal: how much each wrote, if it still writes.

    With a store's URL also the nodes that its pool knows, wherever they write.

    Examples:
        duetime journal list
        duetime journal list --json
    """
    check_exists(target.address)
    known = on_store(target.store, registered) if target.store else {}
    try:
        here = nodes(journal_folder(target, journal, config))
    except InvalidSettings:
        if not known:
            raise
        here = []
    found = [_node(path) for path in here]
    names = {node["node"] for node in found}
    found += [_registered(name, node) for name, node in sorted(known.items()) if name not in names]
    now = SystemClock().now_ms()
    target.answer.table(
        found,
        {
            "node": [node["node"] for node in found],
            "state": [node["state"] for node in found],
            "segments ": [f"{node['segments']:,}" for node in found],
            "bytes ": [f"{node['bytes']:,}" for node in found],
            "sealed up to ": [f"{node['last']:,}" for node in found],
            "written": [relative(node["written_at"], now) if node["written_at"] else "" for node in found],
            "folder": [safe(node["folder"]) for node in found],
        },
    )


def _node(path: Path) -> dict[str, Any]:
    known = segments(path)
    stats = [segment.path.stat() for segment in known if segment.path.exists()]
    return {
        "node": path.name,
        "state": _state(path),
        "segments": len(known),
        "bytes": sum(stat.st_size for stat in stats),
        "last": max((segment.last for segment in known), default=0),
        "written_at": max((int(stat.st_mtime * 1000) for stat in stats), default=0),
        "folder": str(path.parent),
    }


def _registered(name: str, node: RegisteredNode) -> dict[str, Any]:
    """A node that the pool's store knows: its files if they are on this host, else what its record says."""
    path = Path(node.folder) / name
    if node.host == socket.gethostname() and Path(name).name == name and path.is_dir():
        return _node(path)
    is_over = node.last is not None or node.abandoned
    return {
        "node": name,
        "state": ("closed" if is_over else "elsewhere") if node.journal else "no journal",
        "segments": 0,
        "bytes": 0,
        "last": node.last or 0,
        "written_at": 0,
        "folder": f"{node.host}:{node.folder}" if node.host else "",
    }


def _state(path: Path) -> str:
    if is_alive(path):
        return "writing"
    return "dead" if any(segment.is_open for segment in segments(path)) else "closed"


def end(
    target: Target,
    yes: YesOption = False,
) -> None:
    """End the journal of a pool: its store may be used without one again.

    Stop them first: a program with a journal starts the pool's journal again. Jobs that are pushed in between are not
    recorded, so audit and reconcile cannot cover them.

    Examples:
        duetime journal end --url sqlite:///var/lib/duetime/jobs.db
    """
    answer = target.answer
    check_exists(target.address)
    if not yes:
        answer.confirm(f"End the journal of {mask(target.address)}?")
    began = on_store(target.address, _end)
    answer.show({"since": began}, f"The journal that began {rfc3339(began)} has ended.")


async def _end(store: Store) -> int:
    found = await registration.find_journaling(store)
    if found is None:
        raise NotFound("this store keeps no journal")
    await registration.end_journaling(store)
    return found.since


def history(
    job_id: IdArgument,
    target: Target,
    queue: QueueOption = None,
    journal: JournalOption = None,
    config: ConfigOption = None,
) -> None:
    """Show what happened to a job, also after it is gone.

    Reads the journal's folder, so it works where the server runs, or on a copy. With --json one document per entry.

    Examples:
        duetime history welcome-42
        duetime history welcome-42 --queue mail --journal /var/lib/duetime/journal
    """
    folder = journal_folder(target, journal, config)
    items = list(read_job(folder, job_id))
    for damage in (item for item in items if isinstance(item, Damage)):
        note(f"duetime: damage in {damage.path} at byte {damage.offset}: {damage.what}")
    entries = [item for item in items if isinstance(item, Entry) and _is_wanted(item, queue, target.namespace)]
    lives = lives_of(entries)
    if not lives:
        raise JobNotFound(f"the journal in {folder} knows no job {job_id!r}", id=job_id)
    answer = target.answer
    for life in lives:
        if target.json:
            for entry in life:
                answer.document(as_fields(entry))
        else:
            answer.console.print(_timeline(life))


def journal_folder(target: Target, journal: str | None, config: str | None) -> Path:
    """The named folder, else the journal next to the named store, else the server's. Raises InvalidSettings."""
    options = options_of(read_settings({"journal": journal, "store": target.store}, config))
    if options is None:
        raise InvalidSettings("cannot find a journal: the setting journal is off; name a folder with --journal")
    if not options.folder.is_dir():
        hint = "name its folder with --journal; `duetime journal list --url STORE` lists the folders of a store"
        raise InvalidSettings(f"cannot find a journal in {options.folder}; {hint}")
    return options.folder


def _is_wanted(entry: Entry, queue: str | None, namespace: str | None) -> bool:
    return (queue is None or entry.queue == queue) and (namespace is None or entry.namespace == namespace)


def _timeline(life: Sequence[Entry]) -> Text:
    first = life[0]
    title = f"{first.namespace}/{first.queue} {safe(first.id)}"
    text = Text.assemble((title, "bold"), f"  pool {first.pool}" if first.pool != DEFAULT_POOL else "", "\n")
    before = first.ts
    for entry in life:
        passed = f"+{span(entry.ts - before)}" if entry.ts > before else ""
        text.append(f"  {rfc3339(entry.ts)}  {passed:>9}  ")
        is_end = entry.event in ENDS or entry.event is Event.DEAD
        text.append(f"{EVENT_WORDS.get(entry.event, entry.event):<14}", style="bold" if is_end else "")
        text.append(", ".join(_details(entry)) + "\n")
        before = entry.ts
    return text


def _details(entry: Entry) -> Iterable[str]:
    match entry.event:
        case Event.ACCEPTED | Event.ADOPTED | Event.REPLACED:
            yield from _new(entry)
        case Event.DELIVERED:
            yield f"attempt {entry.attempt}"
            yield f"{span(entry.ts - entry.due_at)} after it was due"
        case Event.RELEASED | Event.RESCHEDULED | Event.RESPAWNED | Event.LEASE_EXPIRED:
            yield f"due {_until(entry)}"
        case Event.NOTIFIED:
            yield f"answered {entry.status}" if entry.status else "no answer"
            yield f"after {span(entry.ms)}"
        case Event.PURGED:
            yield f"the queue was purged of {entry.reason.replace(',', ', ')} jobs"
        case _:
            if entry.attempt:
                yield f"attempt {entry.attempt}"
            if entry.reason:
                yield entry.reason
    if entry.error:
        yield safe(entry.error.strip().splitlines()[-1])
    yield f"on {entry.node}"


def _new(entry: Entry) -> Iterable[str]:
    yield f"due {_until(entry)}"
    yield f"{entry.tries} tries" if entry.tries else "unlimited tries"
    if entry.priority and entry.priority != Priority.NORMAL:
        yield f"{Priority(entry.priority).name.lower()} priority"
    if entry.ttl:
        yield f"for {span(entry.ttl)}"
    if entry.reason == REPEATED:
        yield REPEATED
    if entry.batch:
        yield f"batch {safe(entry.batch)}"
    body = body_of(entry)
    if body is not None:
        yield f"body {preview(body)!r}"


def _until(entry: Entry) -> str:
    return f"in {span(entry.due_at - entry.ts)}" if entry.due_at > entry.ts else "immediately"
