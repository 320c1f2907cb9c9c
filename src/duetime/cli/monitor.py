"""`duetime monitor`: queues against thresholds, for cron and probes. Its exit code is 1 when one is over."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from duetime.cli.options import Target, takes_options
from duetime.cli.output import Answer, queue_document, span
from duetime.client.calls import QueueStatus
from duetime.model.clock import duration_ms
from duetime.model.errors import DuetimeError


class QueueBusy(DuetimeError):
    """A queue is over its threshold."""

    code = "queue_busy"
    status = 409


@dataclass(frozen=True)
class Thresholds:
    most: Annotated[int, typer.Option("--max", metavar="N", help="Jobs in all states but dead; 0: no limit.")] = 1000
    max_dead: Annotated[int, typer.Option(metavar="N", help="Dead letters; 0: no limit.")] = 0
    max_late: Annotated[str, typer.Option(metavar="TIME", help="How long a job may have been due; 0: no limit.")] = "0"


@takes_options
def monitor(
    thresholds: Thresholds,
    target: Target,
    queues: Annotated[list[str] | None, typer.Argument(metavar="QUEUE", help="Which; all if not given.")] = None,
) -> None:
    """Show queues and what is over its threshold; exit code 1 if anything is."""
    with target.connect() as client:
        found = [client.queue(name).status() for name in queues] if queues else client.queues()
    found = sorted(found, key=lambda status: status.queue)
    late_ms = duration_ms(thresholds.max_late)
    alerts = [_alerts(one, thresholds, late_ms) for one in found]
    documents = [
        {
            **queue_document(one.queue),
            "size": _size(one),
            "ready": one.counts.ready,
            "delayed": one.counts.delayed,
            "leased": one.counts.leased,
            "dead": one.counts.dead,
            "late_ms": _late(one),
            "paused": one.rules.paused,
            "alerts": alert,
        }
        for one, alert in zip(found, alerts, strict=True)
    ]
    columns = {
        "queue": [one.queue.name for one in found],
        "size ": [f"{_size(one):,}" for one in found],
        "ready ": [f"{one.counts.ready:,}" for one in found],
        "delayed ": [f"{one.counts.delayed:,}" for one in found],
        "leased ": [f"{one.counts.leased:,}" for one in found],
        "dead ": [f"{one.counts.dead:,}" for one in found],
        "late ": [span(_late(one)) if _late(one) else "-" for one in found],
        "status": [f"ALERT: {', '.join(alert)}" if alert else "OK" for alert in alerts],
    }
    Answer(as_json=target.json).table(documents, columns)
    if busy := [one.queue.name for one, alert in zip(found, alerts, strict=True) if alert]:
        raise QueueBusy(f"over a threshold: {', '.join(busy)}", queues=busy)


def _alerts(one: QueueStatus, thresholds: Thresholds, late_ms: int) -> Sequence[str]:
    over = (
        (thresholds.most, _size(one), "size"),
        (thresholds.max_dead, one.counts.dead, "dead"),
        (late_ms, _late(one), "late"),
    )
    return [name for limit, value, name in over if limit and value >= limit]


def _size(one: QueueStatus) -> int:
    return one.counts.total - one.counts.dead


def _late(one: QueueStatus) -> int:
    return max(one.counts.now - one.next_at, 0) if one.next_at is not None else 0
