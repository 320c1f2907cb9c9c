"""Where bulk loads go: into a store, or through a server, which journals for them."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from duetime.client import calls, store_calls
from duetime.client.async_http import AsyncHttp
from duetime.client.transport import is_http
from duetime.model.errors import DuetimeError
from duetime.model.job import IfExists
from duetime.model.names import DEFAULT_NAMESPACE, Queue
from duetime.stores.base import Push, Pushed, StoreInfo
from duetime.stores.bulk import Bulk, Failed, JobColumns, Loaded, LoadStep, LostColumns, Pace, loaded
from duetime.stores.open import open_bulk

CONCURRENT_REQUESTS = 4


async def open_bulk_load(url: str, *, namespace: str = DEFAULT_NAMESPACE, token: str | None = None) -> Bulk:
    return HttpBulk(url, namespace, token) if is_http(url) else await open_bulk(url)


class HttpBulk:
    """Keeps the contract of `stores.bulk.Bulk` through a server."""

    def __init__(self, url: str, namespace: str, token: str | None) -> None:
        self._server = AsyncHttp(url, token)
        self._namespace = namespace

    async def load(
        self, queue: Queue, columns: JobColumns, steps: Sequence[LoadStep], *, pace: Pace | None = None
    ) -> AsyncIterator[Loaded | Failed]:
        waiting: list[asyncio.Task[Loaded | Failed]] = []
        try:
            for step in steps:
                if pace:
                    await pace(step.last - step.first)
                if len(waiting) == CONCURRENT_REQUESTS:
                    yield await waiting.pop(0)
                waiting.append(asyncio.create_task(self._send(queue, columns, step)))
            while waiting:
                yield await waiting.pop(0)
        finally:
            for task in waiting:
                task.cancel()

    async def _send(self, queue: Queue, columns: JobColumns, step: LoadStep) -> Loaded | Failed:
        call = calls.push(queue, columns.jobs(step.first, step.last), IfExists.KEEP, step.mark)
        try:
            return loaded(step, await self._server.send(call))
        except DuetimeError as error:
            return Failed(step, error)

    async def put_back(self, queue: Queue, jobs: LostColumns) -> int | Sequence[Pushed | DuetimeError]:
        """A server gives each job its mark by itself."""
        return await self._server.send(store_calls.put_back(queue, [Push([job]) for job in jobs.jobs()]))

    async def ping(self) -> StoreInfo:
        return await self._server.send(store_calls.store_info(self._namespace))

    async def close(self) -> None:
        await self._server.close()
