"""`duetime pool ...`: pools in addition to those of the settings, which all servers open without a restart.

They are records of the registry. The admin API of a server changes them; so does a command that is given the URL of the
registry's store.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.text import Text

from duetime.cli.config import ConfigOption, read_settings
from duetime.cli.options import Target, argument, check_exists, flag
from duetime.cli.output import relative, safe
from duetime.client.store_link import on_store
from duetime.engine.pools import register_pool, registered_pools, unregister_pool
from duetime.model.errors import DuetimeError, NotFound
from duetime.model.humanise import size
from duetime.model.job import sum_counts
from duetime.model.masking import mask
from duetime.model.names import DEFAULT_POOL
from duetime.model.settings import pool_parts
from duetime.stores.base import Store
from duetime.stores.open import open_store

Name = Annotated[str, argument("NAME", "The pool's name.")]
PATH = "/registered-pools"


def add(
    name: Name,
    store: Annotated[str, argument("STORE", "Its URL: redis://, postgresql://, mysql://, group:.")],
    target: Target,
) -> None:
    """Add a pool; every server process opens it within a second.

    Examples:
        duetime pool add eu redis://10.0.0.2:6379/0 --url redis://localhost
        duetime pool add archive postgresql://duetime@db/jobs --url redis://localhost
    """
    pools = target.admin(
        "POST",
        PATH,
        lambda registry: register_pool(registry, name, store, open_store=open_store),
        new=True,
        parse=_pools,
        json={"name": name, "url": store},
    )
    target.answer.show({"pools": pools}, f"pool {name} is added: {pools[name]}")


def list_pools(target: Target) -> None:
    """List the pools that were added.

    Examples:
        duetime pool list --url redis://localhost
    """
    pools = target.admin("GET", PATH, registered_pools, parse=_pools)
    columns = {"pool": [safe(name) for name in pools], "store": [safe(url) for url in pools.values()]}
    rows = [{"name": name, "url": url} for name, url in pools.items()]
    target.answer.table(rows, columns, nothing="no pools were added; `duetime config` shows those of the settings")


def remove(name: Name, target: Target) -> None:
    """Close a pool that was added; its jobs stay in its store.

    Examples:
        duetime pool remove eu --url redis://localhost
    """
    pools = target.admin(
        "DELETE", PATH, lambda registry: unregister_pool(registry, name), parse=_pools, params={"name": name}
    )
    target.answer.show({"pools": pools}, f"pool {name} is removed; its jobs stay in its store")


def _pools(answer: dict[str, dict[str, str]]) -> dict[str, str]:
    return answer["pools"]


# --- what is in a pool


def show(
    target: Target,
    name: Annotated[str, argument("[POOL]", "A pool of the settings.")] = DEFAULT_POOL,
    queues: Annotated[bool, flag("Show how many jobs of each queue each store has.", "--queues")] = False,
    config: ConfigOption = None,
) -> None:
    """Show each store of a pool: what it holds, how full it is, what is wrong.

    Of a tiered pool these are hot and cold, of a group its members. With --url it is the pool of that URL. The exit
    code is 1 if a store does not answer, or has a problem.

    Examples:
        duetime pool show
        duetime pool show --queues
        duetime pool show default --json
        duetime pool show --url "tiered:x?hot=redis://localhost&cold=postgresql://localhost/jobs"
    """
    url = target.store
    if not url:
        pools = read_settings({}, config).pools
        if name not in pools:
            raise NotFound(f"the settings have no pool {name!r}; they have {', '.join(sorted(pools))}")
        url = pools[name]
    rows = [_part(part, address) for part, address in (pool_parts(url) or {name: url}).items()]
    if queues:
        names = sorted({name for row in rows for name in row["queues"]})
        parts = {row["store"]: row["queues"] if row["kind"] else None for row in rows}
        by_queue = [
            {"queue": name, **{part: None if jobs is None else jobs.get(name, 0) for part, jobs in parts.items()}}
            for name in names
        ]
        columns = {f"{part} ": ["" if row[part] is None else f"{row[part]:,}" for row in by_queue] for part in parts}
        target.answer.table(by_queue, {"queue": [safe(name) for name in names], **columns}, nothing="no queues")
    else:
        _show_stores(target, rows)
    if any(row["problems"] for row in rows):
        raise typer.Exit(1)


def _show_stores(target: Target, rows: Sequence[dict[str, Any]]) -> None:
    now = max(row["now"] for row in rows)
    target.answer.table(
        rows,
        {
            "store": [row["store"] for row in rows],
            "kind": [safe(f"{row['kind']} {row['version']}".strip()) for row in rows],
            "jobs ": [f"{row['jobs']:,}" if row["kind"] else "" for row in rows],
            "next due": [relative(row["next_due_at"], now) if row["next_due_at"] else "" for row in rows],
            "used ": [_used(row) for row in rows],
            "": [Text(safe("; ".join(row["problems"])), style="red") for row in rows],
        },
    )


def _used(row: dict[str, Any]) -> str:
    """How full the store's memory or disk is."""
    room = f" of {size(row['max_bytes'])}" if row["max_bytes"] else ""
    return f"{size(row['used_bytes'])}{room}" if row["used_bytes"] else ""


def _part(part: str, url: str) -> dict[str, Any]:
    row: dict[str, Any] = {
        **dict.fromkeys(("kind", "version"), ""),
        **dict.fromkeys(("jobs", "delayed", "next_due_at", "used_bytes", "max_bytes", "now"), 0),
        "queues": {},
        "problems": [],
    }
    try:
        check_exists(url)
        row |= on_store(url, _inspect)
    except DuetimeError as error:
        row["problems"] = [error.message]
    return {"store": part, "url": mask(url), **row}


async def _inspect(store: Store) -> dict[str, Any]:
    info, queues = await store.ping(), await store.queues()
    counted = await store.counts(queues)
    counts = sum_counts(counted)
    heads = [head for head in await store.heads(queues) if head is not None]
    return {
        "kind": info.kind,
        "version": info.version,
        "jobs": counts.total,
        "delayed": counts.delayed,
        "queues": {str(queue): one.total for queue, one in zip(queues, counted, strict=True)},
        "next_due_at": min(heads, default=0),
        "used_bytes": info.used_bytes,
        "max_bytes": info.max_bytes,
        "now": info.now,
        "problems": [f"{name}: {problem.message}" for name, problem in info.problems.items()],
    }
