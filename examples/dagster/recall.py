"""A letter before each membership ends, as Dagster assets: one schedules the jobs of a table, a check counts them.

pip install duetime dagster
DUETIME_URL=sqlite:jobs.db dagster asset materialize --select '*' -f examples/dagster/recall.py

Dagster decides when the table is read; Duetime delivers each job when it is due. A run that is repeated changes only
the jobs of members whose date has changed, and sends no letter a second time: times in the past are left alone.
"""

import csv
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg

import duetime

QUEUE = "recall"
BEFORE = timedelta(days=3)
Members = dict[str, datetime]


@dg.asset
def members() -> Members:
    """When each membership ends: the file MEMBERS, or three of the example's own."""
    if "MEMBERS" in os.environ:
        with Path(os.environ["MEMBERS"]).open() as rows:
            return {row["member"]: datetime.fromisoformat(row["ends_at"]) for row in csv.DictReader(rows)}
    today = datetime.now(UTC).replace(hour=9, minute=0, second=0, microsecond=0)
    return {name: today + timedelta(days=days) for name, days in {"ann": 30, "bob": 45, "eve": 60}.items()}


@dg.asset(retry_policy=dg.RetryPolicy(max_retries=3, delay=5))
def recall_letters(members: Members) -> dg.MaterializeResult[Any]:
    """One job per member, due three days before the end. A member whose date has changed gets the new one."""
    now = datetime.now(UTC)
    with duetime.connect(os.environ["DUETIME_URL"]) as client:
        queue = client.queue(QUEUE)
        due = {f"recall-{name}": _ms(ends_at - BEFORE) for name, ends_at in members.items() if ends_at - BEFORE > now}
        waiting = {job.id: job.due_at for job in queue.get_many(list(due)) if job is not None}
        new = [
            duetime.NewJob(job_id, job_id.removeprefix("recall-").encode(), due_at=due_at)
            for job_id, due_at in due.items()
            if waiting.get(job_id) != due_at
        ]
        moved = queue.bulk(new, if_exists="replace")
    replaced = sum(one.event == "replaced" for one in moved)
    counts = {
        "accepted": len(moved) - replaced,
        "replaced": replaced,
        "unchanged": len(due) - len(new),
        "past": len(members) - len(due),
    }
    return dg.MaterializeResult(metadata=counts)


@dg.asset_check(asset=recall_letters)
def no_letter_is_late() -> dg.AssetCheckResult:
    """Fails if letters are due and nobody sends them."""
    with duetime.connect(os.environ["DUETIME_URL"]) as client:
        counts = client.queue(QUEUE).counts()
    return dg.AssetCheckResult(passed=counts.ready == 0 and counts.dead == 0, metadata={"waiting": counts.delayed})


def _ms(instant: datetime) -> int:
    return int(instant.timestamp() * 1000)


defs = dg.Definitions(assets=[members, recall_letters], asset_checks=[no_letter_is_late])
