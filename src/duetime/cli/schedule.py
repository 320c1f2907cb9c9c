"""`duetime schedule ...`: jobs that are pushed at an interval or by a cron expression."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from duetime.cli.options import Target, argument, option, parse_attributes
from duetime.cli.output import StateWord, body_text, moment, note, preview, safe
from duetime.cli.push import PriorityWord, read_body
from duetime.model.clock import SystemClock
from duetime.model.errors import InvalidRequest
from duetime.model.humanise import span
from duetime.model.job import DEFAULT_TRIES, State
from duetime.model.schedules import Missed, Overlap
from duetime.model.when import read_when
from duetime.wire import convert
from duetime.wire.messages import ScheduleOut

NameArgument = Annotated[str, argument("NAME", "The name of the schedule.")]


def list_schedules(target: Target) -> None:
    """List the schedules of the namespace with their next and last runs.

    Examples:
        duetime schedule list
        duetime schedule list --json
    """
    with target.connect() as client:
        found = client.schedules.list_schedules()
    now = SystemClock().now_ms()
    columns = {
        "name": [safe(one.name) for one in found],
        "schedule": [safe(one.schedule) for one in found],
        "pushes": [_pushes(one) for one in found],
        "next run": ["paused" if one.paused else moment(one.next_at, now) for one in found],
        "last run": [moment(one.last_at, now) if one.last_at else "-" for one in found],
        "state": [_last_state(one) for one in found],
        "declared by": ["a program" if one.declared else "the API" for one in found],
    }
    target.answer.table(_documents(found), columns, nothing=f"no schedules in {target.space}")


def show(name: NameArgument, target: Target) -> None:
    """Show a schedule and the state of its last run.

    Examples:
        duetime schedule show nightly-report
    """
    with target.connect() as client:
        found = client.schedules.get(name)
    now = SystemClock().now_ms()
    facts = [
        ("schedule", found.schedule),
        ("queue", found.queue),
        ("task", found.task and _pushes(found)),
        ("body", body_text(_body(found))),
        ("next run", "paused" if found.paused else moment(found.next_at, now)),
        ("last run", f"{moment(found.last_at, now)}, {found.last_id}, {_last_state(found)}" if found.last_at else ""),
        ("missed", found.missed),
        ("overlap", found.overlap),
        ("tries", str(found.tries or "unlimited")),
        ("priority", found.priority),
        ("expires", f"{span(found.ttl_ms)} after the push" if found.ttl_ms else ""),
        *((f"@{name}", value) for name, value in found.attributes.items()),
        ("declared", "by a program" if found.declared else ""),
    ]
    text = "\n".join([found.name, *(f"  {name:<9} {value}" for name, value in facts if value)])
    target.answer.show(_documents([found])[0], safe(text))


@dataclass(frozen=True)
class ScheduleOptions:
    """When a schedule runs, and the job that it pushes."""

    queue: Annotated[str, option("QUEUE", "The queue of the jobs.")]
    every: Annotated[str | None, option("DURATION", "The interval: 15m, 1h, 1d.")] = None
    cron: Annotated[str | None, option("EXPRESSION", "Five fields: '0 9 * * mon-fri'.")] = None
    tz: Annotated[str, option("ZONE", "The time zone of --cron, such as Asia/Shanghai.")] = "UTC"
    task: Annotated[str | None, option("NAME", "The task that workers run.")] = None
    arguments: Annotated[str | None, option("JSON", "The arguments of the task, an object.")] = None
    body: Annotated[str | None, option("BODY", "The body of a job without a task; - is stdin.")] = None
    missed: Annotated[
        Missed, option(None, "Which runs happen later if they were due while no server or worker ran.")
    ] = "last"
    overlap: Annotated[Overlap, option(None, "skip: no run while the job of the last run is unfinished.")] = "allow"
    ttl: Annotated[str, option("DURATION", "Drop a job that is not done in time; 0: never.")] = "0"
    tries: Annotated[int, option("N", "Deliveries allowed; 0: unlimited.", min=0)] = DEFAULT_TRIES
    priority: Annotated[PriorityWord, option(None, "Which ready jobs are delivered first.")] = PriorityWord.NORMAL
    attribute: Annotated[list[str], option("NAME=VALUE", "A header of the jobs; repeatable.")] = field(
        default_factory=list[str]
    )

    def fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {name: value for name, value in vars(self).items() if value is not None}
        fields["attributes"] = dict(parse_attributes(fields.pop("attribute")))
        if self.body is not None:
            fields["body"] = read_body(self.body)
        if self.arguments is not None:
            try:
                fields["arguments"] = msgspec.json.decode(self.arguments, type=dict[str, Any])
            except msgspec.DecodeError:
                raise InvalidRequest(f"--arguments must be a JSON object, got {self.arguments!r}") from None
        return fields


def add(name: NameArgument, options: ScheduleOptions, target: Target) -> None:
    """Add a schedule, or replace the one of this name.

    The servers of the store run it, and workers that use the store directly: each run is pushed exactly once.

    Examples:
        duetime schedule add rates --every 15m --queue rates --body refresh --overlap skip
        duetime schedule add report --cron '0 9 * * mon-fri' --tz Asia/Shanghai --queue mail --task shop.report
    """
    with target.connect(new=True) as client:
        _answer(target, client.schedules.put(name, **options.fields()))


def pause(name: NameArgument, target: Target) -> None:
    """Start no runs of a schedule until it is resumed.

    Examples:
        duetime schedule pause nightly-report
    """
    with target.connect() as client:
        _answer(target, client.schedules.pause(name))


def resume(name: NameArgument, target: Target) -> None:
    """Continue a paused schedule with its next run.

    Runs that were due during the pause are not repeated.

    Examples:
        duetime schedule resume nightly-report
    """
    with target.connect() as client:
        _answer(target, client.schedules.resume(name))


def run(name: NameArgument, target: Target) -> None:
    """Run a schedule now, in addition to its regular runs.

    Examples:
        duetime schedule run nightly-report
    """
    with target.connect() as client:
        found = client.schedules.run(name)
    pushed = "a worker will push the run" if found.declared else f"pushed {safe(found.last_id)} to {found.queue}"
    target.answer.show(_documents([found])[0], f"{safe(found.name)}: {pushed}")


def backfill(
    name: NameArgument,
    target: Target,
    *,
    since: Annotated[str, option("TIME", "The first instant of the span: 2026-11-12, -3d.")],
    until: Annotated[str | None, option("TIME", "The end of the span; now if not given.")] = None,
) -> None:
    """Push the runs of a schedule in a period of the past.

    Runs that were pushed in the last seven days are not pushed again. With --overlap skip the next run is pushed if the
    one before it has finished; repeat the command for more. A span may have at most 500 runs.

    Examples:
        duetime schedule backfill nightly-report --since=-3d
        duetime schedule backfill rates --since 2026-11-12T00:00:00Z --until 2026-11-13T00:00:00Z
    """
    now = SystemClock().now_ms()
    first = read_when(since, now_ms=now, zone=None).at(now)
    end = None if until is None else read_when(until, now_ms=now, zone=None).at(now)
    with target.connect() as client:
        done = client.schedules.backfill(name, since=first, until=end)
    target.answer.show(msgspec.to_builtins(done), f"{safe(name)}: pushed {done.pushed} of {done.runs} runs")
    if done.pushed < done.runs:
        note("the others were pushed before, or have to wait for an unfinished run (--overlap skip)")


def remove(name: NameArgument, target: Target) -> None:
    """Remove a schedule; jobs that it has pushed stay.

    A schedule that a program declares comes back with the next worker of the program.

    Examples:
        duetime schedule remove nightly-report
    """
    with target.connect() as client:
        found = client.schedules.delete(name)
    target.answer.show(_documents([found])[0], f"{safe(found.name)} removed")


def _answer(target: Target, found: ScheduleOut) -> None:
    due = "paused" if found.paused else f"next run {moment(found.next_at, SystemClock().now_ms())}"
    target.answer.show(_documents([found])[0], safe(f"{found.name}: {found.schedule}, {due}"))


def _documents(found: Sequence[ScheduleOut]) -> list[dict[str, Any]]:
    return [
        {name: None if value is msgspec.UNSET else value for name, value in msgspec.structs.asdict(one).items()}
        for one in found
    ]


def _body(one: ScheduleOut) -> bytes:
    return convert.read_body(one.body, one.body_b64)


def _pushes(one: ScheduleOut) -> str:
    """A task with its arguments, or a queue with a body."""
    if one.task:
        arguments = ", ".join(f"{name}={bytes(value).decode()}" for name, value in one.arguments.items())
        return safe(f"{one.task}({arguments})")
    return safe(f"{one.queue}: {preview(_body(one))}")


def _last_state(one: ScheduleOut) -> str:
    if not one.last_at:
        return "-"
    return StateWord.of(State(one.last_state)) if one.last_state else "finished"
