"""`duetime workers`: who runs what, and for how long."""

from msgspec import to_builtins

from duetime.cli.options import Target, takes_options
from duetime.cli.output import Answer, moment, note, safe, span
from duetime.worker.shared_counters import list_workers


@takes_options
def workers(target: Target) -> None:
    """List the workers of the namespace: since when they run, their queues, and the jobs that they run longest.

    A worker says every ten seconds that it is there and what it runs; one that was killed is listed for up to 25.
    """
    with target.connect() as client:
        seen = client.send(list_workers(target.space))
    if not seen.workers and not target.json:
        note(f"no workers in {target.space}")
        return
    rows = [(worker, job) for worker in seen.workers for job in worker.running or [None]]
    columns = {
        "host": [safe(worker.host) for worker, _ in rows],
        "pid ": [str(worker.pid) for worker, _ in rows],
        "pool": [f"{worker.concurrency} {safe(worker.pool)}" for worker, _ in rows],
        "queues": [safe(worker.queues) for worker, _ in rows],
        "started": [moment(worker.started_at, seen.now) for worker, _ in rows],
        "jobs ": [str(worker.jobs) for worker, _ in rows],
        "runs": ["" if job is None else f"{safe(job.task)} {safe(job.queue)}/{safe(job.id)}" for _, job in rows],
        "for ": ["" if job is None else span(max(0, seen.now - job.began_at)) for _, job in rows],
    }
    documents = [{"namespace": target.space, **to_builtins(worker), "now": seen.now} for worker in seen.workers]
    Answer(as_json=target.json).table(documents, columns)
