"""Commands that work on a store itself, and not through the SDK."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from duetime.cli.options import Target
from duetime.client.transport import is_http
from duetime.model.errors import InvalidRequest
from duetime.stores.base import Store
from duetime.stores.open import open_store

T = TypeVar("T")

STORE_ONLY = "give the store's own URL with --url: sqlite:///..., redis://..., postgresql://..., mysql://..."


def with_store(target: Target, work: Callable[[Store], Awaitable[T]], refusal: str) -> T:
    """Does the work on the store. Raises InvalidRequest with `refusal` if the URL is a server's."""

    async def run() -> T:
        store = await open_store(target.address)
        try:
            return await work(store)
        finally:
            await store.close()

    if is_http(target.address):
        raise InvalidRequest(refusal)
    return asyncio.run(run())
