"""`duetime queue ...`: queues as a whole."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec.structs import asdict

from duetime.cli.jobs import QueueArgument
from duetime.cli.options import Target, YesOption, argument, flag, option
from duetime.cli.output import Answer, StateWord, queue_document
from duetime.client.calls import QueueStatus
from duetime.model.errors import InvalidRequest
from duetime.model.job import Counts, Totals, sum_counts
from duetime.model.names import Queue
from duetime.model.settings import read_size
from duetime.stores.base import QueueRules, RulesChange

QueuesArgument = Annotated[list[str] | None, argument("QUEUE", "Names of queues.")]
SomeQueues = Annotated[list[str] | None, argument("QUEUE", "Names of queues; all queues if not given.")]
AllOption = Annotated[bool, flag("All queues that the namespace has now.", "--all")]


TOTAL_WORDS = {
    "acked": "finished",
    "released": "retried",
    "lapsed": "leases expired",
    "dead": "failed",
    "cancelled": "deleted",
    "respawned": "retried by hand",
}


def list_queues(target: Target) -> None:
    """List the queues of the namespace, with exact counts and rules."""
    with target.connect() as client:
        statuses = sorted(client.queues(), key=lambda status: status.queue)
    columns = {
        "queue": [status.queue.name for status in statuses],
        **_count_columns([status.counts for status in statuses]),
        "rules": [describe_rules(status.rules) for status in statuses],
    }
    target.answer.table(
        [status_document(status) for status in statuses], columns, nothing=f"no queues in {target.space}"
    )


def _count_columns(counts: Sequence[Counts]) -> dict[str, list[str]]:
    names = {"ready": "ready", "delayed": "delayed", "running": "leased", "failed": "dead", "expired": "expired"}
    if any(one.cold for one in counts):
        names["cold"] = "cold"
    return {f"{word} ": [f"{getattr(one, name):,}" for one in counts] for word, name in names.items()}


def describe_rules(rules: QueueRules) -> str:
    words = [name for name in ("paused", "strict", "expired_to_dead", "kept", "offline") if getattr(rules, name)]
    words += [f"{name}={getattr(rules, name)}" for name in ("max_jobs", "max_body") if getattr(rules, name)]
    return " ".join(words)


def status_document(status: QueueStatus) -> dict[str, Any]:
    return {**queue_document(status.queue), "counts": asdict(status.counts), "rules": asdict(status.rules)}


def counts(
    target: Target,
    queues: SomeQueues = None,
) -> None:
    """Count jobs by state, exactly.

    An unknown queue has zeros. `expired` counts the jobs whose time to live ended, since the queue exists; `cold` is
    how many of the jobs are in the cold tier of a tiered pool.

    Examples:
        duetime queue counts mail
        duetime queue counts --json
    """
    with target.connect() as client:
        if queues:
            found = [client.queue(name).status() for name in queues]
        else:
            found = sorted(client.queues(), key=lambda status: status.queue)
    documents = [{**queue_document(one.queue), **asdict(one.counts)} for one in found]
    columns = {"queue": [one.queue.name for one in found], **_count_columns([one.counts for one in found])}
    if not target.json and len(found) > 1:
        total = sum_counts([one.counts for one in found])
        for name, cells in {"queue": ["total"], **_count_columns([total])}.items():
            columns[name] += cells
    target.answer.table(documents, columns)


def totals(queue: QueueArgument, target: Target) -> None:
    """Count the events of a queue: in total and for each of the last 31 days (UTC).

    They go back to zero when an idle queue is removed, unless its rule `kept` is set.

    Examples:
        duetime queue totals mail
        duetime queue totals mail --json
    """
    with target.connect() as client:
        queue_client = client.queue(queue)
        found = queue_client.totals()
    rows = {**{day.isoformat(): one for day, one in sorted(found.days.items())}, "total": found.running}
    columns = {"day": list(rows)}
    for name in Totals.__struct_fields__:
        columns[f"{TOTAL_WORDS.get(name, name)} "] = [f"{getattr(one, name):,}" for one in rows.values()]
    target.answer.table([{**queue_document(queue_client.name), **asdict(found)}], columns)


def pause(target: Target, queues: QueuesArgument = None, every: AllOption = False) -> None:
    """Stop deliveries; pushes, acks and expiry continue.

    Examples:
        duetime queue pause mail
        duetime queue pause --all
    """
    _configure(queues, every, target, paused=True)


def resume(target: Target, queues: QueuesArgument = None, every: AllOption = False) -> None:
    """Deliver again; waiting consumers wake immediately.

    Examples:
        duetime queue resume mail
    """
    _configure(queues, every, target, paused=False)


def _configure(queues: Sequence[str] | None, every: bool, target: Target, *, paused: bool) -> None:
    if bool(queues) == every:
        raise InvalidRequest("pause and resume must have names of queues or --all")
    answer = target.answer
    with target.connect() as client:
        for name in queues or sorted(status.queue.name for status in client.queues()):
            queue_client = client.queue(name)
            rules = queue_client.pause() if paused else queue_client.resume()
            text = f"{queue_client.name} {'paused' if rules.paused else 'delivers'}"
            answer.show({**queue_document(queue_client.name), "rules": asdict(rules)}, text)


@dataclass(frozen=True)
class RulesOptions:
    """None: not given here, stays as it is."""

    strict: Annotated[bool | None, flag("High priority first, always; else shares 5:3:2.", "--strict/--no-strict")] = (
        None
    )
    expired_to_dead: Annotated[
        bool | None, flag("Keep expired jobs as failed.", "--expired-to-dead/--no-expired-to-dead")
    ] = None
    kept: Annotated[bool | None, flag("Keep the queue and its totals while it is idle.", "--kept/--no-kept")] = None
    offline: Annotated[bool | None, flag("Refuse pushes.", "--offline/--no-offline")] = None
    max_jobs: Annotated[
        int | None, option("N", "Refuse pushes when the queue has this number of jobs; 0: no cap.", min=0)
    ] = None
    max_body: Annotated[str | None, option("SIZE", "Refuse larger bodies, such as 64KiB; 0: no cap.")] = None

    def change(self) -> RulesChange | None:
        """None: nothing is to be changed."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        if self.max_body is not None:
            given["max_body"] = _size(self.max_body)
        return RulesChange(**given) if given else None


def _size(text: str) -> int:
    try:
        return read_size(text)
    except ValueError:
        raise InvalidRequest(f"size must be a number of bytes or a text like 64KiB, got {text!r}") from None


def rules(queue: QueueArgument, options: RulesOptions, target: Target) -> None:
    """Show or change a queue's rules: order, caps, what happens to expired jobs.

    Examples:
        duetime queue rules mail
        duetime queue rules mail --strict --max-jobs 100000 --max-body 64KiB
    """
    change = options.change()
    with target.connect(new=change is not None) as client:
        queue_client = client.queue(queue)
        obeyed = queue_client.configure(change)
    text = f"{queue_client.name}: {describe_rules(obeyed) or 'no rules'}"
    target.answer.show({**queue_document(queue_client.name), "rules": asdict(obeyed)}, text)


@dataclass(frozen=True)
class PurgeOptions:
    state: Annotated[list[StateWord], option(None, "Only jobs in this state; repeatable. All if not given.")] = field(
        default_factory=list[StateWord]
    )
    yes: YesOption = False


def purge(queue: QueueArgument, options: PurgeOptions, target: Target) -> None:
    """Delete the jobs of a queue, by state or all of them.

    Consumers of running jobs lose their leases.

    Examples:
        duetime queue purge mail
        duetime queue purge mail --state ready --state delayed -y
    """
    answer = target.answer
    states = tuple(dict.fromkeys(options.state)) or tuple(StateWord)
    with target.connect() as client:
        queue_client = client.queue(queue)
        if not options.yes:
            counts = queue_client.counts()
            shares = ", ".join(f"{getattr(counts, word.state):,} {word}" for word in states)
            answer.confirm(f"Delete {shares} jobs of {queue_client.name}?")
        removed = queue_client.purge([word.state for word in states])
    show_removed(answer, queue_client.name, removed)


def show_removed(answer: Answer, queue: Queue, removed: int) -> None:
    answer.show({**queue_document(queue), "removed": removed}, f"{queue}: {removed:,} deleted")
