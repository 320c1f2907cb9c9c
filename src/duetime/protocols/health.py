"""/healthz and /readyz, on both listeners.

/healthz answers 200 for as long as the process serves, and says in its body how the stores are: restarting a process
does not cure its store. /readyz is for load balancers: 503 while a store does not answer or a loop that jobs depend on
does not run, and from the start of a drain.
"""

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from duetime import __version__
from duetime.engine.pools import Pools
from duetime.model.errors import DuetimeError, NoAnswer

PING_S = 2.0
"""A store that takes longer counts as down."""


def dead_loops(companions: Iterable[object]) -> list[str]:
    """The names of companions with an ended task among their `loops`; a companion without loops is never dead."""
    found: list[str] = []
    for companion in companions:
        loops: Iterable[asyncio.Task[Any]] = getattr(companion, "loops", ())
        if any(loop.done() for loop in loops):
            found.append(type(companion).__name__.lower())
    return found


def health_routes(
    pools: Pools, draining: asyncio.Event, *, companions: Sequence[object] = (), detailed: bool
) -> Sequence[Route]:
    """`companions` run with the listeners; `detailed` shows the names of pools and stores, for admins."""

    async def healthz(request: Request) -> Response:
        stores, dead = await _check_pools(pools), dead_loops(companions)
        healthy = all(store["status"] == "ok" for store in stores.values()) and not dead
        report: dict[str, Any] = {"status": "ok" if healthy else "degraded", "version": __version__}
        if detailed:
            report["pools"] = stores
            if dead:
                report["dead"] = dead
        return _json(200, report)

    async def readyz(request: Request) -> Response:
        if draining.is_set():
            return _json(503, {"status": "draining"})
        stores = await _check_pools(pools)
        down = [name for name, store in stores.items() if store["status"] != "ok"] + dead_loops(companions)
        report: dict[str, Any] = {"status": "not ready" if down else "ready"}
        if detailed and down:
            report["down"] = down
        return _json(503 if down else 200, report)

    return [Route("/healthz", healthz), Route("/readyz", readyz)]


async def _check_pools(pools: Pools) -> dict[str, dict[str, Any]]:
    names = sorted({*pools.names, *pools.errors()})
    return dict(zip(names, await asyncio.gather(*(_ping(pools, name) for name in names)), strict=True))


async def _ping(pools: Pools, name: str) -> dict[str, Any]:
    """One pool's state. Shows the code of an error and not its text, which may name hosts."""
    began = time.perf_counter()
    try:
        if error := pools.errors().get(name):
            raise error
        async with asyncio.timeout(PING_S):
            engine = pools.engine(name)
            info = await engine.store.ping()
    except DuetimeError as error:
        return {"status": error.code}
    except TimeoutError:
        return {"status": NoAnswer.code}
    if engine.stuck:
        return {"status": "stuck", "loops": engine.stuck}
    latency_ms = round((time.perf_counter() - began) * 1000, 3)
    report: dict[str, Any] = {"status": "ok", "store": info.kind, "version": info.version, "latency_ms": latency_ms}
    if info.problems:
        # The pool still serves the jobs of its other stores; out of service, the process would serve none.
        report["problems"] = {member: error.code for member, error in info.problems.items()}
    return report


def _json(status: int, value: object) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
