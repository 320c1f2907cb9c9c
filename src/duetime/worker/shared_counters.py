"""Small numbers that workers share: restarts, progress, exceptions per job.

Counters of the registry, named `tasks/<namespace>/...`. They carry no version and announce nothing, so a progress that
changes every second costs no other process anything.
"""

import msgspec

from duetime.client.calls import Call, Request
from duetime.engine import Engine
from duetime.errors import DuetimeError
from duetime.names import Queue
from duetime.wire.messages import CounterOut, CountIn
from duetime.wire.payload import counter_name


def count(namespace: str, name: str, by: int = 0, *, life_ms: int = 0) -> Call[int]:
    """Add to a counter and answer its value; by=0 only reads. `life_ms` counts from its first change, 0 = for ever."""

    async def run(engine: Engine) -> int:
        counter = await engine.store.registry.increment(counter_name(namespace, name), by, life_ms=life_ms)
        return counter.value

    def request() -> Request:
        message = CountIn(name=name, by=by, life=f"{life_ms}ms")
        return Request("POST", f"/v1/namespaces/{namespace}/counters", msgspec.json.encode(message))

    def parse(reply: bytes) -> int:
        try:
            return msgspec.json.decode(reply, type=CounterOut).value
        except msgspec.MsgspecError as error:
            raise DuetimeError(f"the server's answer is no counter: {error}") from None

    return Call(request, parse, run, repeatable=by == 0)


def progress_name(queue: Queue, job_id: str) -> str:
    return f"progress/{queue.name}/{job_id}"


def exceptions_name(job_id: str, born: int) -> str:
    return f"exceptions/{job_id}/{born}"
