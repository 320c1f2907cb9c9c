"""The page Stores, php-delayqueue's "Redis servers": the state of each pool, and which of its stores drain."""

from collections import Counter
from collections.abc import Sequence

from starlette.responses import Response

from duetime.console.live import ProcessState
from duetime.console.pages.overview import pool_health
from duetime.console.visit import Visit
from duetime.engine.pools import registered_pools, unregister_pool
from duetime.model.errors import InvalidRequest, NotFound
from duetime.model.masking import mask
from duetime.model.settings import group_members
from duetime.stores.registry import GROUP_DRAIN, read_drain, set_drain


async def show_stores(visit: Visit) -> Response:
    parts = visit.parts
    errors = parts.pools.errors()
    return visit.page(
        "stores.html",
        pools=[(one, mask(parts.pools.urls[one.name]), errors.get(one.name)) for one in await pool_health(visit)],
        members={name: _members(url) for name, url in parts.pools.urls.items()},
        added=await registered_pools(parts.pools.registry),
        parked=_sum_parked(await parts.live.processes()),
        totals=await parts.live.totals.pool_totals(),
        journal=await parts.live.meters.journal(),
    )


def _members(url: str) -> list[tuple[str, str, bool]]:
    """The stores of a group: name, URL without secrets, and whether the settings let it drain."""
    return [(name, mask(address), drains) for name, address, drains in group_members(url)]


async def drain(visit: Visit) -> Response:
    """Let a member of a group take no new jobs; what it has is delivered."""
    return await _set_drain(visit, drains=True)


async def undrain(visit: Visit) -> Response:
    return await _set_drain(visit, drains=False)


async def _set_drain(visit: Visit, *, drains: bool) -> Response:
    pool, member = visit.pool(), visit.field("member")
    members = group_members(visit.parts.pools.urls.get(pool, ""))
    if member not in [name for name, _, _ in members]:
        raise NotFound(visit.say("pool.no_member"))
    registry = visit.engine().store.registry
    draining = read_drain(await registry.get(GROUP_DRAIN, pool)) | {name for name, _, leaves in members if leaves}
    if drains and draining | {member} >= {name for name, _, _ in members}:
        raise InvalidRequest(visit.say("pool.last_member"))
    await set_drain(registry, pool, member, drains=drains)
    await visit.log("drain" if drains else "undrain", f"{pool} {member}")
    return visit.go(text=visit.say("pool.drain_set" if drains else "pool.drain_ended", member=member))


async def add_pool(visit: Visit) -> Response:
    """Name one more pool in the registry; every server process opens it."""
    name = visit.field("name").strip()
    await visit.parts.pools.register(name, visit.field("url").strip())
    await visit.parts.registry_copy.refresh()
    await visit.log("pool_add", name)
    return visit.go(text=visit.say("pool.added", pool=name))


async def remove_pool(visit: Visit) -> Response:
    name = visit.field("pool")
    await unregister_pool(visit.parts.pools.registry, name)
    await visit.parts.registry_copy.refresh()
    await visit.log("pool_remove", name)
    return visit.go(text=visit.say("pool.removed", pool=name))


def _sum_parked(processes: Sequence[ProcessState]) -> dict[str, int]:
    sums = Counter[str]()
    for process in processes:
        sums.update(process.parked)
    return dict(sums)
