"""Clients that repeat each request until it is answered, and remember what they were told.

A producer pushes with an id, with an Idempotency-Key, or with both; a consumer finishes by lease or, as clients of
lmstfy do, by id. A push whose job was finished before it was repeated is a new job, so books are kept by id and born.
An ack that is repeated after that finds the new job under the id and is refused, which `superseded` has. `wrong` are
answers that said that nothing had happened although it had.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from duetime.journal.events import Entry, body_of
from duetime.journal.reader import read_journal
from duetime.model.job import Event
from duetime.model.names import Queue
from duetime.stores.base import Store, get_all
from duetime.stores.redis.store import RedisStore
from tests.faults.losing_proxy import LosingProxy
from tests.plugins.served import ServedProcess
from tests.plugins.until import until

QUEUE = Queue("ns", "q")
PAUSE_S = 0.02

Key = tuple[str, int]
Happened = Callable[[], Awaitable[bool]]


async def cut_replies(proxy: LosingProxy, load: "AnsweredLoad", jobs: int) -> None:
    """Lose answers until so many pushes are answered; now and then for so long that the repetitions fail as well."""
    proxy.loses_every = 10
    for _ in range(4):
        lost = proxy.lost
        await until(lambda lost=lost: proxy.lost > lost + 5 or len(load.pushed) == jobs, deadline_s=250)
        proxy.on_loss = proxy.refuse
        await asyncio.sleep(0.5)
        proxy.on_loss = None
        proxy.accept()
    await until(lambda: len(load.pushed) == jobs, deadline_s=250)
    proxy.loses_every = 0


@asynccontextmanager
async def loaded(server: ServedProcess, url: str, jobs: int) -> AsyncIterator["AnsweredLoad"]:
    """Load that runs inside the block until it is over; the server is stopped then."""
    store = await RedisStore.open(url)
    try:
        load = AnsweredLoad(server.api, store)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load.run(producers=6, consumers=4, jobs=jobs))
            yield load
        assert len(load.pushed) == jobs
        code, log = await asyncio.to_thread(server.stop)
        assert code == 0, log
    finally:
        await store.close()


class AnsweredLoad:
    """`store` is a way to the same store that nothing disturbs."""

    def __init__(self, api: str, store: Store) -> None:
        self._api, self._store = api, store
        self.pushed: dict[Key, bytes] = {}
        self.acked: set[Key] = set()
        self.acked_by_id: set[str] = set()
        self.superseded: set[Key] = set()
        self.wrong: list[str] = []
        self.repeats = 0

    async def run(self, *, producers: int, consumers: int, jobs: int) -> None:
        """Ends when every push is answered and no delivery is under way."""
        assert jobs % producers == 0
        done = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            consuming = [tasks.create_task(self._consume(number, done)) for number in range(consumers)]
            async with asyncio.TaskGroup() as pushing:
                for number in range(producers):
                    pushing.create_task(self._produce(number, jobs // producers))
            done.set()
        assert all(task.done() for task in consuming)

    async def _produce(self, name: int, count: int) -> None:
        async with httpx.AsyncClient(timeout=60) as client:
            for number in range(count):
                body, job_id = f"body of {name}-{number}", f"{name}-{number}"
                job = {"body": body, "delay": "1h" if number % 4 == 3 else 0} | ({"id": job_id} if number % 3 else {})
                headers = {} if number % 3 == 1 else {"Idempotency-Key": job_id}
                known = job_id if number % 3 else None
                reply = await self._ask(
                    client, "POST", f"/v1/queues/{QUEUE}/jobs", self._is_there(known), json=job, headers=headers
                )
                moved = reply.json()["moved"]
                self.pushed[moved["id"], moved["born"]] = body.encode()

    async def _consume(self, number: int, done: asyncio.Event) -> None:
        async with httpx.AsyncClient(timeout=60) as client:
            for turn in itertools.count(number):
                path, ask = f"/v1/queues/{QUEUE}/reserve", {"limit": 5, "ttr": "1h"}
                found = (await self._ask(client, "POST", path, None, json=ask)).json()["deliveries"]
                if turn % 3:
                    leases = [one["lease"] for one in found[1:]]
                    if leases:
                        await self._finish(client, leases)
                else:
                    for one in found[1:]:
                        await self._finish_by_id(client, one["lease"]["id"])
                if not found:
                    if done.is_set():
                        return
                    await asyncio.sleep(PAUSE_S)

    async def _finish(self, client: httpx.AsyncClient, leases: list[dict[str, Any]]) -> None:
        ids = [lease["id"] for lease in leases]
        reply = await self._ask(client, "POST", f"/v1/queues/{QUEUE}/ack", self._is_gone(ids), json={"leases": leases})
        for lease, result in zip(leases, reply.json()["results"], strict=True):
            assert result.get("error", {}).get("code") in (None, "lease_lost"), reply.text
            (self.superseded if "error" in result else self.acked).add((lease["id"], lease["born"]))

    async def _finish_by_id(self, client: httpx.AsyncClient, job_id: str) -> None:
        await self._ask(client, "DELETE", f"/api/{QUEUE}/job/{job_id}", None)
        self.acked_by_id.add(job_id)

    async def _ask(
        self, client: httpx.AsyncClient, method: str, path: str, happened: Happened | None, **request: Any
    ) -> httpx.Response:
        """Until it succeeds. `happened` looks whether the request has taken effect."""
        maybe = False
        while True:
            try:
                reply = await client.request(method, self._api + path, **request)
            except httpx.TransportError:
                maybe = True
            else:
                if reply.status_code < 300:
                    return reply
                assert reply.status_code == (500 if path.startswith("/api/") else 503), reply.text
                unknown = b'"unknown":true' in reply.content
                if happened and not maybe and not unknown and await happened():
                    self.wrong.append(f"{method} {path} {reply.text}")
                maybe = maybe or unknown
            self.repeats += 1
            await asyncio.sleep(PAUSE_S)

    def _is_there(self, job_id: str | None) -> Happened | None:
        async def look() -> bool:
            assert job_id is not None
            return (await self._store.get(QUEUE, [job_id]))[0] is not None

        return look if job_id else None

    def _is_gone(self, ids: list[str]) -> Happened:
        async def look() -> bool:
            return None in await get_all(self._store, QUEUE, ids)

        return look

    def wrongly_refused(self) -> set[Key]:
        """Leases that were called lost although no newer job had the id: nothing else takes a lease of an hour away."""
        newest = {job_id: born for job_id, born in sorted(self.pushed)}
        return {(job_id, born) for job_id, born in self.superseded if newest.get(job_id, 0) <= born}

    def untold(self, journal: Path) -> tuple[set[Key], set[Key | str]]:
        """Pushes and acks that were answered, and that the journal does not know. A kept job that was finished before
        it could be written down again is known by its end. An ack by id whose answer was lost is written down without
        the born when it is repeated: it ends every job that had the id until then.
        """
        entries = [item for item in read_journal(journal) if isinstance(item, Entry)]
        begins = (Event.ACCEPTED, Event.REPLACED)
        told = {(entry.id, entry.born, body_of(entry)) for entry in entries if entry.event in begins}
        acked = [entry for entry in entries if entry.event is Event.ACKED]
        finished = {(entry.id, entry.born) for entry in acked}
        finished |= {(job_id, born) for job_id, born in self.pushed if _is_ended(job_id, born, acked)}
        pushes = {key for key, body in self.pushed.items() if (*key, body) not in told}
        return pushes - finished, (self.acked - finished) | (self.acked_by_id - {job_id for job_id, _ in finished})


def _is_ended(job_id: str, born: int, acked: list[Entry]) -> bool:
    return any(entry.id == job_id and not entry.born and entry.ts >= born for entry in acked)
