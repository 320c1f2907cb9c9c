"""/healthz and /readyz, on both listeners.

/healthz answers 200 for as long as the process serves, and says in its body how the stores are: restarting a process
does not cure its store. /readyz is for load balancers: 503 while a store does not answer, and from the start of a
drain.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from duetime import __version__
from duetime.engine.pools import Pools
from duetime.errors import DuetimeError, NoAnswer

PING_S = 2.0
"""A store that takes longer counts as down."""


def health_routes(pools: Pools, draining: asyncio.Event, *, detailed: bool) -> Sequence[Route]:
    """`detailed` names the pools and their stores, for eyes that may see them."""

    async def healthz(request: Request) -> Response:
        stores = await _look(pools)
        status = "ok" if all(store["status"] == "ok" for store in stores.values()) else "degraded"
        report: dict[str, Any] = {"status": status, "version": __version__}
        if detailed:
            report["pools"] = stores
        return _json(200, report)

    async def readyz(request: Request) -> Response:
        if draining.is_set():
            return _json(503, {"status": "draining"})
        stores = await _look(pools)
        down = [name for name, store in stores.items() if store["status"] != "ok"]
        report: dict[str, Any] = {"status": "not ready" if down else "ready"}
        if detailed and down:
            report["down"] = down
        return _json(503 if down else 200, report)

    return [Route("/healthz", healthz), Route("/readyz", readyz)]


async def _look(pools: Pools) -> dict[str, dict[str, Any]]:
    names = sorted({*pools.names, *pools.errors()})
    return dict(zip(names, await asyncio.gather(*(_ping(pools, name) for name in names)), strict=True))


async def _ping(pools: Pools, name: str) -> dict[str, Any]:
    """One pool's state. Says which error, not its text: that may name hosts."""
    began = time.perf_counter()
    try:
        if error := pools.errors().get(name):
            raise error
        async with asyncio.timeout(PING_S):
            info = await pools.engine(name).store.ping()
    except DuetimeError as error:
        return {"status": error.code}
    except TimeoutError:
        return {"status": NoAnswer.code}
    latency_ms = round((time.perf_counter() - began) * 1000, 3)
    return {"status": "ok", "store": info.kind, "version": info.version, "latency_ms": latency_ms}


def _json(status: int, value: object) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
