"""Data that workers share: small numbers (restarts, progress, exceptions per job), their beats, the output of jobs.

Counters of the registry, named `tasks/<namespace>/...`. They carry no version and announce nothing, so a progress that
changes every second costs no other process anything.
"""

from urllib.parse import quote

import msgspec

from duetime.client.call import Call, Request, decode, get_request, then
from duetime.engine import Engine
from duetime.model.errors import NOT_JSON, DuetimeError
from duetime.model.names import Queue
from duetime.stores.registry import Counter
from duetime.wire.job_output import OutputOut, read_output
from duetime.wire.messages import CounterOut, CountIn
from duetime.wire.payload import counter_name
from duetime.wire.worker_beats import WorkersOut, find_workers


def count(namespace: str, name: str, by: int = 0, *, life_ms: int = 0) -> Call[int]:
    """Add to a counter and return its value; by=0 only reads. `life_ms` begins with its first change; 0 is forever."""
    return then(count_with_life(namespace, name, by, life_ms=life_ms), lambda counter: counter.value)


def count_with_life(namespace: str, name: str, by: int = 0, *, life_ms: int = 0) -> Call[Counter]:
    """The same, and how much of the counter's life is left, by the store's clock."""

    async def run(engine: Engine) -> Counter:
        return await engine.store.registry.increment(counter_name(namespace, name), by, life_ms=life_ms)

    def request() -> Request:
        message = CountIn(name=name, by=by, life=f"{life_ms}ms")
        return Request("POST", f"/v1/namespaces/{namespace}/counters", msgspec.json.encode(message))

    def parse(reply: bytes) -> Counter:
        try:
            counter = msgspec.json.decode(reply, type=CounterOut)
            return Counter(counter.value, counter.left_ms)
        except NOT_JSON as error:
            raise DuetimeError(f"server's answer cannot be read as a counter: {error}") from None

    return Call(request, parse, run, repeatable=by == 0)


def list_workers(namespace: str) -> Call[WorkersOut]:
    """The workers of a namespace, with the jobs that each has run longest."""

    async def run(engine: Engine) -> WorkersOut:
        return await find_workers(engine.store.registry, namespace)

    return Call(
        lambda: get_request(f"/v1/namespaces/{quote(namespace, safe='')}/workers"),
        lambda reply: decode(reply, WorkersOut),
        run,
        repeatable=True,
    )


def job_output(queue: Queue, job_id: str) -> Call[OutputOut]:
    """The last lines that the task of a running job logged."""
    address = f"/v1/queues/{queue.namespace}/{quote(queue.name, safe='')}/jobs/{quote(job_id, safe='')}/output"

    async def run(engine: Engine) -> OutputOut:
        return await read_output(engine.store.registry, queue, job_id)

    return Call(lambda: get_request(address), lambda reply: decode(reply, OutputOut), run, repeatable=True)


def progress_name(queue: Queue, job_id: str) -> str:
    return f"progress/{queue.name}/{job_id}"


def exceptions_name(job_id: str, born: int) -> str:
    return f"exceptions/{job_id}/{born}"
