"""Searches for a text in all jobs: they go on in the background, step by step, and their pages show how far they are.

The state of a search is a record of the registry, so that every process of the server can show and stop it; it is
deleted after an hour. A text is found regardless of case, in the id and in the body; escapes in JSON (`\\u8bd5`) are
read as the characters that they stand for.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress

import msgspec
from msgspec import Struct

from duetime.engine.engine import Engine
from duetime.model.errors import DuetimeError
from duetime.model.job import Job, State
from duetime.model.names import Queue
from duetime.stores.registry import Registry

log = logging.getLogger("duetime.console")

KIND = "console-search"
STOP = "console-search-stop"
KEPT_S = 3600
MOST_FOUND = 200
STEP = 200
WRITE_S = 0.5
LARGEST_DECODED = 262_144
"""Larger bodies with escapes are compared as they are written."""
HEAVY = 262_144
"""A step with more bytes than this is compared in a thread."""

Place = tuple[str, Queue]


class TextHit(Struct, array_like=True, frozen=True):
    pool: str
    queue: Queue
    id: str
    state: State
    due_at: int
    attempt: int
    preview: str


class TextSearch(Struct, frozen=True):
    """`looked` of `total` jobs were read. `state`: running, done, stopped, full (MOST_FOUND were found) or failed.

    `user`, `pool` and `namespace` say who may see it: its user, and within one namespace if these are set.
    """

    id: str
    user: str
    text: str
    total: int
    started_at: float
    looked: int = 0
    found: list[TextHit] = []
    state: str = "running"
    problem: str = ""
    pool: str = ""
    namespace: str = ""
    queue: str = ""


class SearchTarget(Struct, frozen=True):
    place: Place
    states: tuple[State, ...]


def readable(body: bytes) -> str:
    """The body as text for comparing: case folded, and with the escapes of JSON replaced."""
    text = body.decode(errors="replace")
    if "\\" in text and len(body) <= LARGEST_DECODED and text[:1] in '{["':
        with suppress(ValueError, RecursionError):
            text = json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":"))
    return text.casefold()


def contains(job: Job, needle: str) -> bool:
    """`needle` is case folded. Blanks after commas and colons do not matter: JSON is written with and without."""
    if needle in job.id.casefold():
        return True
    text = readable(job.body)
    return needle in text or (" " in needle and _dense(needle) in _dense(text))


def _dense(text: str) -> str:
    return text.replace(": ", ":").replace(", ", ",")


class TextSearches:
    def __init__(
        self, registry: Callable[[], Registry], engine_of: Callable[[str], Engine], preview: Callable[[Job], str]
    ) -> None:
        self._registry = registry
        self._engine_of = engine_of
        self._preview = preview
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def read(self, search_id: str) -> TextSearch | None:
        record = await self._registry().get(KIND, search_id)
        return msgspec.json.decode(record.value, type=TextSearch) if record else None

    async def stop(self, search_id: str) -> None:
        await self._registry().put(STOP, search_id, b"1")

    async def start(self, search: TextSearch, targets: Sequence[SearchTarget], *, within_s: float) -> TextSearch:
        """Begin, and wait for the end for a moment. An earlier search of the same user is stopped."""
        await self._delete_old(search.user)
        await self._write(search)
        task = asyncio.create_task(self._run(search, targets))
        self._tasks[search.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(search.id, None))
        await asyncio.wait({task}, timeout=within_s)
        return await self.read(search.id) or search

    async def _run(self, search: TextSearch, targets: Sequence[SearchTarget]) -> None:
        needle, found, looked, wrote_at = search.text.casefold(), list[TextHit](), 0, time.monotonic()
        state, problem = "done", ""
        try:
            async for place, jobs in self._pages(targets):
                heavy = sum(len(job.body) for job in jobs) > HEAVY
                hits = await asyncio.to_thread(_matching, jobs, needle) if heavy else _matching(jobs, needle)
                found += [
                    TextHit(*place, job.id, job.state, job.due_at, job.attempt, self._preview(job)) for job in hits
                ]
                looked += len(jobs)
                if len(found) >= MOST_FOUND:
                    state = "full"
                    break
                if time.monotonic() - wrote_at >= WRITE_S:
                    wrote_at = time.monotonic()
                    if await self._registry().get(STOP, search.id) is not None:
                        state = "stopped"
                        break
                    await self._write(msgspec.structs.replace(search, looked=looked, found=found))
                await asyncio.sleep(0)
        except DuetimeError as error:
            state, problem = "failed", error.message
        try:
            await self._write(
                msgspec.structs.replace(search, looked=looked, found=found[:MOST_FOUND], state=state, problem=problem)
            )
        except DuetimeError as error:
            log.info("console_search_lost", extra={"error": error.message})

    async def _pages(self, targets: Iterable[SearchTarget]) -> AsyncIterator[tuple[Place, Sequence[Job]]]:
        for target in targets:
            pool, queue = target.place
            store = self._engine_of(pool).store
            for state in target.states:
                cursor: str | None = None
                while True:
                    page = await store.list_jobs(queue, state, cursor=cursor, limit=STEP)
                    if page.jobs:
                        yield target.place, page.jobs
                    cursor = page.cursor
                    if cursor is None:
                        break

    async def _write(self, search: TextSearch) -> None:
        await self._registry().put(KIND, search.id, msgspec.json.encode(search))

    async def _delete_old(self, user: str) -> None:
        for record in await self._registry().list_records(KIND):
            known = msgspec.json.decode(record.value, type=TextSearch)
            if known.user == user and known.state == "running":
                await self.stop(known.id)
            if known.started_at < time.time() - KEPT_S:
                await self._registry().delete(KIND, record.key)
                await self._registry().delete(STOP, record.key)


def _matching(jobs: Sequence[Job], needle: str) -> list[Job]:
    return [job for job in jobs if contains(job, needle)]
