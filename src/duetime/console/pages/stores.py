"""The page Stores, php-delayqueue's "Redis servers": the state of each pool; add, drain and remove stores."""

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from starlette.responses import Response

from duetime.console.forms import FormReader, FormRefused
from duetime.console.live import ProcessState
from duetime.console.pages.overview import pool_health
from duetime.console.queue_snapshots import QueueSnapshot
from duetime.console.settings_file import change_stores, file_of
from duetime.console.visit import Visit, link
from duetime.engine.pools import registered_pools, unregister_pool
from duetime.model.errors import Conflict, InvalidRequest, InvalidSettings, NotFound
from duetime.model.masking import mask
from duetime.model.settings import group_members
from duetime.stores.registry import BRIDGE, GROUP_DRAIN, read_drain, set_drain

FORGOTTEN_MS = 3_600_000
_NAME = re.compile(r"(?!drain$)[A-Za-z0-9_-]{1,64}", re.ASCII)


async def show_stores(visit: Visit) -> Response:
    parts = visit.parts
    errors = parts.pools.errors()
    urls = parts.pools.urls
    snapshot = await parts.live.snapshots.for_page(is_partial=visit.is_partial)
    return await visit.page(
        "stores.html",
        pools=[(one, mask(urls[one.name]), errors.get(one.name)) for one in await pool_health(visit)],
        tiers={name: _tiers(snapshot, name) for name in urls if visit.is_tiered(name)},
        members={name: _members(url) for name, url in urls.items()},
        added=await registered_pools(parts.pools.registry),
        files={name: file for name in urls if (file := file_of(parts.settings.sources.get(f"pool.{name}", "")))},
        bridges=_bridges(visit),
        parked=_sum_parked(await parts.live.processes()),
        totals=await parts.live.totals.pool_totals(),
        journal=await parts.live.meters.journal(),
    )


def _bridges(visit: Visit) -> dict[str, dict[str, Any]]:
    """What server/bridge_sizes.py read of other systems, by name. A bridge that nobody reads any more is left out."""
    found = {one.key: msgspec.json.decode(one.value) for one in visit.parts.registry_copy.list_records(BRIDGE)}
    return {name: one for name, one in found.items() if visit.now - one["read_at"] < FORGOTTEN_MS}


def _tiers(snapshot: QueueSnapshot, pool: str) -> dict[str, int]:
    """How many jobs each tier of the pool has; empty if that is not known."""
    if not snapshot.is_known or pool in snapshot.problems:
        return {}
    counts = [line.counts for line in snapshot.lines if line.pool == pool]
    cold = sum(one.cold for one in counts)
    return {"hot": sum(one.total for one in counts) - cold, "cold": cold}


def _members(url: str) -> list[tuple[str, str, bool]]:
    """The stores of a group: name, URL without secrets, and whether the settings let it drain."""
    return [(name, mask(address), drains) for name, address, drains in group_members(url)]


async def switch_drain(visit: Visit, *, drains: bool) -> Response:
    """Let a member of a group take no new jobs, or take them again; what it has is delivered."""
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


async def add_store(visit: Visit) -> Response:
    """Add a store to a group, or a pool of its own."""
    form = FormReader(visit)
    name = form.read("name", _check_name, "")
    if not visit.field("url").strip():
        form.refuse("url", visit.say("form.required"))
    form.check()
    try:
        return await (_add_member if visit.field("pool") else _add_pool)(visit, name, visit.field("url").strip())
    except Conflict as error:
        raise FormRefused({"name": error.message}) from None
    except (InvalidRequest, InvalidSettings) as error:
        raise error if isinstance(error, FormRefused) else FormRefused({"url": mask(error.message)}) from None


def _check_name(text: str) -> str:
    name = text.strip()
    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"name must consist of ASCII letters, digits, '-' and '_', got {name[:40]!r}")
    return name


async def _add_pool(visit: Visit, name: str, url: str) -> Response:
    """Name one more pool in the registry; every server process opens it."""
    await visit.parts.pools.register(name, url)
    await visit.parts.registry_copy.refresh()
    await visit.log("add-pool", name, mask(url))
    return visit.go(link("stores"), visit.say("pool.added", pool=name))


async def _add_member(visit: Visit, name: str, url: str) -> Response:
    """Add the store to the settings file of this machine. It drains until somebody lets it take jobs, because all
    servers must know it first.
    """
    pool, file = visit.pool(), _settings_file(visit)
    members = {one: address for one, address, _ in group_members(visit.parts.pools.urls[pool])}
    if name in members:
        raise FormRefused({"name": visit.say("pool.taken")})
    if url in members.values():
        raise FormRefused({"url": visit.say("pool.known")})
    if url.startswith(("group:", "tiered:")):
        raise FormRefused({"url": f"store of a group must be a single store, got {mask(url)}"})
    info = await visit.parts.pools.check_store(url)
    registry = visit.engine().store.registry
    await set_drain(registry, pool, name, drains=True)
    try:
        await asyncio.to_thread(change_stores, file, pool, {name: url})
    except InvalidRequest:
        await set_drain(registry, pool, name, drains=False)  # else it would drain once it is added by hand
        raise
    await visit.log("add-store", f"{pool} {name}", mask(url))
    version = f"{info.kind} {info.version}"
    return visit.go(link("stores"), visit.say("pool.member_added", member=name, version=version))


def _settings_file(visit: Visit) -> Path:
    file = file_of(visit.parts.settings.sources.get(f"pool.{visit.pool()}", ""))
    if file is None or not group_members(visit.parts.pools.urls.get(visit.pool(), "")):
        raise InvalidRequest(visit.say("pool.no_file"))
    return file


async def remove_store(visit: Visit) -> Response:
    """Take a store that is drained and empty out of a group."""
    pool, member = visit.pool(), visit.field("member")
    file, info = _settings_file(visit), await visit.engine().store.ping()
    if member not in info.members:
        raise NotFound(visit.say("pool.no_member"))
    if info.members[member].drain != "empty":
        raise InvalidRequest(visit.say("pool.not_empty", member=member))
    await asyncio.to_thread(change_stores, file, pool, {member: None})
    await visit.log("remove-store", f"{pool} {member}")
    return visit.go(link("stores"), visit.say("pool.member_removed", member=member))


async def remove_pool(visit: Visit) -> Response:
    name = visit.field("pool")
    await unregister_pool(visit.parts.pools.registry, name)
    await visit.parts.registry_copy.refresh()
    await visit.log("remove-pool", name)
    return visit.go(text=visit.say("pool.removed", pool=name))


def _sum_parked(processes: Sequence[ProcessState]) -> dict[str, int]:
    sums = Counter[str]()
    for process in processes:
        sums.update(process.parked)
    return dict(sums)
