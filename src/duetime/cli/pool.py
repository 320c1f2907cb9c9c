"""`duetime pool ...`: pools in addition to those of the settings, which all servers open without a restart.

They are records of the registry. The admin API of a server changes them; so does a command that is given the URL of the
registry's store.
"""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import typer

from duetime.cli.options import Target, takes_options
from duetime.cli.output import safe
from duetime.client.store_link import AdminCall, send_admin
from duetime.engine.pools import register_pool, registered_pools, unregister_pool
from duetime.stores.open import open_store
from duetime.stores.registry import Registry

Name = Annotated[str, typer.Argument(metavar="NAME", help="The pool's name.")]
PATH = "/registered-pools"


@takes_options
def add(
    name: Name,
    store: Annotated[str, typer.Argument(metavar="STORE", help="Its URL: redis://, postgresql://, mysql://, group:.")],
    target: Target,
) -> None:
    """Add a pool; every server process opens it within a second.

    Examples:
        duetime pool add eu redis://10.0.0.2:6379/0 --url redis://localhost
        duetime pool add archive postgresql://duetime@db/jobs --url redis://localhost
    """
    pools = _ask(
        target,
        lambda registry: register_pool(registry, name, store, open_store=open_store),
        "POST",
        PATH,
        json={"name": name, "url": store},
    )
    target.answer.show({"pools": pools}, f"pool {name} is added: {pools[name]}")


@takes_options
def list_pools(target: Target) -> None:
    """List the pools that were added.

    Examples:
        duetime pool list --url redis://localhost
    """
    pools = _ask(target, registered_pools, "GET", PATH)
    columns = {"pool": [safe(name) for name in pools], "store": [safe(url) for url in pools.values()]}
    rows = [{"name": name, "url": url} for name, url in pools.items()]
    target.answer.table(rows, columns, nothing="no pools were added; `duetime config` shows those of the settings")


@takes_options
def remove(name: Name, target: Target) -> None:
    """Close a pool that was added; its jobs stay in its store.

    Examples:
        duetime pool remove eu --url redis://localhost
    """
    pools = _ask(target, lambda registry: unregister_pool(registry, name), "DELETE", PATH, params={"name": name})
    target.answer.show({"pools": pools}, f"pool {name} is removed; its jobs stay in its store")


def _ask(
    target: Target, on_registry: Callable[[Registry], Awaitable[dict[str, str]]], method: str, path: str, **sent: Any
) -> dict[str, str]:
    call = AdminCall(method, path, on_registry, parse=lambda answer: answer["pools"], sent=sent)
    return send_admin(target.admin_address, call)
