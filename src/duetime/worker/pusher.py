"""Sends the jobs of tasks to their queues: the path of every `delay`, `later` and `at`.

An App has a Pusher and can be given another one: `duetime.testing` and hooks that wait for a commit put theirs in its
place. The usual one sends to the store or server, with one client per process for blocking code and one per event loop
for asyncio; inside a worker it uses the worker's own.

Code that needs answers of the store is written once, as a generator of calls (`Work`); `both` makes a blocking and an
async method of it.
"""

import asyncio
import hashlib
import os
import threading
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import replace as replace_field
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Raw, field
from msgspec.structs import replace

from duetime.client import AsyncClient, Client, connect, connect_async
from duetime.client.call import Call
from duetime.client.calls import push
from duetime.model.errors import DuetimeError
from duetime.model.job import Event, IfExists, Moved, NewJob, chunks, payload_bytes
from duetime.model.names import Queue
from duetime.worker.middleware_chain import Seal
from duetime.worker.shared_counters import count

if TYPE_CHECKING:
    from duetime.worker.app import App

Answer = TypeVar("Answer")
P = ParamSpec("P")

Work = Generator[Call[Any], Any, Answer]
"""Calls to the store, one after the other; each is sent with the answer to the one before it."""


@dataclass(frozen=True)
class Outgoing:
    """A job to be pushed. With `unique_ms` its id is made of the task and its arguments (see `successor`). With a
    `counter` its id is that of a generation (see `in_generation`), and it may replace one that waits. `data` are its
    arguments as JSON, which the body holds encrypted if there is a `seal`.
    """

    queue: Queue
    job: NewJob
    name: str
    data: bytes
    unique_ms: int = 0
    counter: str = ""
    if_exists: IfExists = IfExists.KEEP
    seal: Seal | None = None


class StoreCaller(Protocol):
    """Sends any call to the store or server, from blocking code or from a running event loop."""

    def send(self, call: Call[Answer], /) -> Answer: ...

    async def send_async(self, call: Call[Answer], /) -> Answer: ...


class Pusher(Protocol):
    def push(self, many: Sequence[Outgoing]) -> Work[list[Moved]]:
        """All to one queue. One answer each, in their order."""
        ...


class AppOwner(Protocol):
    """An object whose methods ask the store through an App."""

    @property
    def app(self) -> "App": ...


Owner = TypeVar("Owner", bound=AppOwner)


def send_work(caller: StoreCaller, work: Work[Answer]) -> Answer:
    """Send the calls of some work. A call that fails raises inside the work."""
    try:
        call = next(work)
        while True:
            try:
                answer = caller.send(call)
            except DuetimeError as error:
                call = work.throw(error)
            else:
                call = work.send(answer)
    except StopIteration as done:
        return done.value


async def send_work_async(caller: StoreCaller, work: Work[Answer]) -> Answer:
    """`send_work`, inside a running loop."""
    try:
        call = next(work)
        while True:
            try:
                answer = await caller.send_async(call)
            except DuetimeError as error:
                call = work.throw(error)
            else:
                call = work.send(answer)
    except StopIteration as done:
        return done.value


def both(
    work: Callable[Concatenate[Owner, P], Work[Answer]],
) -> tuple[Callable[Concatenate[Owner, P], Answer], Callable[Concatenate[Owner, P], Coroutine[Any, Any, Answer]]]:
    """Make a blocking method and its async twin of one method that yields calls."""

    @wraps(work)
    def blocking(self: Owner, *args: P.args, **kwargs: P.kwargs) -> Answer:
        return send_work(self.app, work(self, *args, **kwargs))

    @wraps(work)
    async def in_loop(self: Owner, *args: P.args, **kwargs: P.kwargs) -> Answer:
        return await send_work_async(self.app, work(self, *args, **kwargs))

    name = work.__name__.removeprefix("_").removesuffix("_work")
    blocking.__name__, in_loop.__name__ = name, f"{name}_async"
    return blocking, in_loop


class UncommittedPush(Moved, frozen=True):
    """The answer to a push that waits for a commit. `pushed` has the real answer once there is one."""

    pushed: list[Moved] = field(default_factory=list[Moved])


def unstored_answer(outgoing: Outgoing) -> Moved:
    """The answer to a push that was not sent yet."""
    return Moved(Event.ACCEPTED, outgoing.job.id, 0, due_at=outgoing.job.due_at or 0)


def unique_id(name: str, data: bytes, hash_key: bytes) -> str:
    """The id of a unique job: equal for equal tasks, arguments and keys in every process."""
    digest = hashlib.blake2b(data, key=hash_key, digest_size=16, person=b"unique").hexdigest()
    return f"{name[-64:]}:{digest}"


def renamed(outgoing: Outgoing, job_id: str, queue: Queue | None = None) -> Outgoing:
    """The job under another id, and in another queue if one is given. Encrypted arguments are encrypted anew for it."""
    queue = queue or outgoing.queue
    job = replace(outgoing.job, id=job_id)
    if outgoing.seal is not None:
        fields = msgspec.json.decode(job.body, type=dict[str, Raw])
        fields["data"] = Raw(outgoing.seal(queue, job_id))
        job = replace(job, body=msgspec.json.encode(fields))
    return replace_field(outgoing, job=job, queue=queue)


def successor(outgoing: Outgoing, moved: Moved, now: int) -> Outgoing | None:
    """The job to push instead if the id belongs to a job that no longer blocks it: a dead one, or one that was pushed
    `unique_ms` ago or more. The new id is made of that job's born, so that all producers choose the same.
    """
    blocks = moved.reason != "dead" and now - moved.born < outgoing.unique_ms
    if not outgoing.unique_ms or moved.event is not Event.KEPT or blocks:
        return None
    base = outgoing.job.id.partition("~")[0]
    return renamed(outgoing, f"{base}~{moved.born}")


def in_generation(outgoing: Outgoing, generation: int) -> Outgoing:
    """The job with the id of its key's current generation: a key has at most one job that has not begun."""
    return replace_field(renamed(outgoing, f"{outgoing.counter}#{generation}"), counter="")


def generation_of(job_id: str) -> tuple[str, int] | None:
    """The counter and the generation that an id was made of."""
    counter, _, rest = job_id.partition("#")
    number = rest.partition("~")[0]
    return (counter, int(number)) if number.isdecimal() else None


@dataclass(frozen=True)
class WorkerClient:
    """The client of the worker that runs in this process."""

    client: AsyncClient
    loop: asyncio.AbstractEventLoop
    thread: int


class ClientPusher:
    """Thread-safe. A client that was opened before a fork is left to the parent."""

    def __init__(self, url: str, namespace: str, token: str | None, journal: str | None = None) -> None:
        self._place: dict[str, Any] = {"url": url, "namespace": namespace, "token": token, "journal": journal}
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._pid = 0
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncClient] = WeakKeyDictionary()
        self._worker_client: WorkerClient | None = None
        self._in_pool = False

    def push(self, many: Sequence[Outgoing]) -> Work[list[Moved]]:
        """Pushes with as few calls as the limits of a call allow."""
        jobs: list[Outgoing] = []
        for one in many:
            if one.counter:
                one = in_generation(one, (yield count(one.queue.namespace, one.counter)))  # noqa: PLW2901
            jobs.append(one)
        moved: list[Moved] = []
        for chunk in chunks((one.job for one in jobs), size=payload_bytes):
            part = jobs[len(moved) : len(moved) + len(chunk)]
            pushed = yield push(part[0].queue, chunk, part[0].if_exists)
            for outgoing, one in zip(part, pushed.jobs, strict=True):
                following = successor(outgoing, one, pushed.now)
                moved += (yield from self.push([following])) if following else [one]
        return moved

    def send(self, call: Call[Answer]) -> Answer:
        """Send any call from blocking code."""
        inside = self._worker_client
        if inside and threading.get_ident() != inside.thread:
            return asyncio.run_coroutine_threadsafe(inside.client.send(call), inside.loop).result()
        return self._blocking().send(call)

    async def send_async(self, call: Call[Answer]) -> Answer:
        """Send any call from a running event loop."""
        if self._in_pool:
            # The loop of a pool's process is stopped between coroutines, and a client on it would hang.
            return await asyncio.to_thread(self.send, call)
        loop, inside = asyncio.get_running_loop(), self._worker_client
        if inside and inside.loop is not loop:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(inside.client.send(call), inside.loop))
        if inside:
            return await inside.client.send(call)
        client = self._by_loop.get(loop)
        if client is None:
            client = self._by_loop[loop] = connect_async(**self._place)
        return await client.send(call)

    @contextmanager
    def worker(self, client: AsyncClient) -> Generator[None]:
        """Inside it, pushes of this process go through the worker's client."""
        self._worker_client = WorkerClient(client, asyncio.get_running_loop(), threading.get_ident())
        try:
            yield
        finally:
            self._worker_client = None

    def forked(self) -> None:
        """Called in a new process of a pool: nothing that was open before belongs to it."""
        self._in_pool = True
        self._lock = threading.Lock()
        self._client, self._worker_client = None, None
        self._by_loop = WeakKeyDictionary()

    def close(self) -> None:
        with self._lock:
            if self._client is not None and self._pid == os.getpid():
                self._client.close()
            self._client = None

    async def close_async(self) -> None:
        client = self._by_loop.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    def _blocking(self) -> Client:
        with self._lock:
            if self._client is None or self._pid != os.getpid():
                self._client, self._pid = connect(**self._place), os.getpid()
            return self._client
