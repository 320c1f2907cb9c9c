"""From settings to the lmstfy listeners."""

from typing import Any

import pytest

from duetime.engine.pools import Pools
from duetime.engine.registry_copy import RegistryCopy
from duetime.metrics.scraper import Scraper
from duetime.model.errors import InvalidSettings
from duetime.model.settings import load
from duetime.protocols.lmstfy import Defaults
from duetime.protocols.lmstfy.options import make_parts
from duetime.server.supervision.siblings import Alone
from duetime.stores.memory.store import MemoryStore
from tests.plugins.passwords import hashed

ACCOUNTS = {"ann": hashed("p")}


async def open_store(url: str) -> MemoryStore:
    return MemoryStore()


def make(**file: Any) -> Any:
    pools = Pools({"default": "memory:"}, open_store=open_store)
    return make_parts(
        load(flags={}, environment={}, file=file), pools, RegistryCopy(lambda: pools.registry), Scraper(pools, Alone())
    )


async def test_defaults_are_those_of_lmstfy() -> None:
    options = make().options
    assert options.defaults == Defaults(delay=0, ttl=86_400, tries=1, ttr=120, timeout=0)
    assert options.max_body == 1_048_576


async def test_settings_reach_the_application() -> None:
    given = {"lmstfy_ttl": "1h", "lmstfy_delay": 5, "lmstfy_tries": 3, "lmstfy_ttr": "1m", "lmstfy_timeout": "2s"}
    assert make(**given).options.defaults == Defaults(delay=5, ttl=3600, tries=3, ttr=60, timeout=2)
    options = make(lmstfy_public_sizes=False, admin_protect_all=True, access_log=True, accounts=ACCOUNTS).options
    assert (options.public_sizes, options.protect_admin, options.access_log) == (False, True, True)
    assert options.accounts == ACCOUNTS
    assert options.admin_is_local
    assert not make(admin_host="192.0.2.1", accounts=ACCOUNTS).options.admin_is_local


@pytest.mark.parametrize(
    "given",
    [
        {"lmstfy_tries": 0},
        {"lmstfy_tries": 65_536},
        {"lmstfy_ttl": "1500ms"},
        {"lmstfy_ttl": "1s", "lmstfy_delay": "2s"},
    ],
)
async def test_wrong_settings_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings, match=r"lmstfy_(tries|ttl)"):
        make(**given)
