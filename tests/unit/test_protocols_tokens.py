"""Tokens: hashed, shown once, revoked soon, and what an outage of the registry means for them."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from duetime.engine.registry_copy import RegistryCopy
from duetime.engine.schedules import SCHEDULES
from duetime.model.clock import SystemClock
from duetime.model.errors import Forbidden, InvalidName, PoolNotFound, StoreUnavailable, Unauthorized, VersionConflict
from duetime.protocols.tokens import LABEL, Access, Token, Tokens, digest_of, make_secret, split
from duetime.stores.memory.registry import MemoryRegistry
from duetime.stores.registry import Changes
from tests.plugins.until import until
from tests.simulation.virtual_loop import virtual_time

POOLS = ("default", "second")


class Registry(MemoryRegistry):
    """One that can be switched off."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.down = False

    async def changes(self, since: int = 0) -> Changes:
        if self.down:
            raise StoreUnavailable
        return await super().changes(since)


@pytest.fixture
def registry() -> Registry:
    return Registry()


@asynccontextmanager
async def server(registry: Registry, **options: object) -> AsyncIterator[Tokens]:
    async with RegistryCopy(lambda: registry) as registry_copy:
        yield Tokens(registry_copy, lambda: registry, POOLS, **options)  # type: ignore[arg-type]


@pytest.fixture
async def tokens(registry: Registry) -> AsyncIterator[Tokens]:
    async with server(registry) as one:
        yield one


async def test_no_token_is_made_for_the_namespace_of_all_schedules(tokens: Tokens) -> None:
    """A job that is pushed there is a schedule of any namespace that it names."""
    with pytest.raises(InvalidName):
        await tokens.create("second", SCHEDULES.namespace, "a team called so")


def test_a_secret_is_long_and_never_the_same() -> None:
    secrets = {make_secret() for _ in range(1000)}
    assert len(secrets) == 1000
    assert all(re.fullmatch(r"[0-9A-HJKMNP-TV-Z]{26}", secret) for secret in secrets)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ("default", "")),
        ("x", ("default", "x")),
        ("default:x", ("default", "x")),
        ("second:x", ("second", "x")),
        (":x", ("", "x")),
        ("a:b:c", ("a", "b:c")),
    ],
)
def test_split(text: str, parts: tuple[str, str]) -> None:
    assert split(text) == parts


async def test_a_token_is_for_one_pool_and_namespace(tokens: Tokens) -> None:
    secret = await tokens.create("default", "ns", "mine")
    token = await tokens.check("default", "ns", secret)
    assert (token.pool, token.namespace, token.description, token.scopes) == (
        "default",
        "ns",
        "mine",
        frozenset({Access.READ, Access.WRITE}),
    )
    for pool, namespace in [("second", "ns"), ("default", "other"), ("default", "n")]:
        with pytest.raises(Unauthorized, match="invalid token"):
            await tokens.check(pool, namespace, secret)
    with pytest.raises(Unauthorized, match="token not found"):
        await tokens.check("default", "ns", "")


async def test_parts_of_the_key_cannot_be_shifted(tokens: Tokens) -> None:
    secret = await tokens.create("default", "a-b", "d")
    for namespace, text in [("a", f"b/{secret}"), ("a", f"-b{secret}"), ("a-b", f"{secret}/")]:
        with pytest.raises(Unauthorized):
            await tokens.check("default", namespace, text)


async def test_only_the_hash_is_kept_and_nothing_shows_the_secret(tokens: Tokens, registry: Registry) -> None:
    secret = await tokens.create("default", "ns", "mine")
    records = (await registry.changes(0)).records
    assert len(records) == 1
    assert secret not in repr(records)
    [listed] = await tokens.list_tokens("default", "ns")
    assert listed.label == digest_of(secret)[:LABEL]
    assert secret not in repr(listed)
    with pytest.raises(Unauthorized) as caught:
        await tokens.check("default", "other", secret)
    assert secret not in repr(caught.value)


async def test_an_own_secret_can_be_used_once_per_namespace(tokens: Tokens) -> None:
    own = "my-own-token-of-20-characters"
    assert await tokens.create("default", "ns", "d", secret=own) == own
    await tokens.create("default", "other", "d", secret=own)
    with pytest.raises(VersionConflict):
        await tokens.create("default", "ns", "again", secret=own)
    with pytest.raises(PoolNotFound):
        await tokens.create("nowhere", "ns", "d")


async def test_an_administrator_may_say_the_token_or_its_label(tokens: Tokens) -> None:
    secret = await tokens.create("second", "ns", "d")
    token = await tokens.check("second", "ns", secret)
    assert await tokens.find("ns", f"second:{secret}") == token
    assert await tokens.find("ns", f"second:{token.label}") == token
    assert await tokens.find("ns", secret) == Token("default", "ns", digest_of(secret)), "none of that pool"
    with pytest.raises(PoolNotFound):
        await tokens.find("ns", "nowhere:x")
    await tokens.delete(token)
    await tokens.delete(token)
    assert await tokens.list_tokens("second", "ns") == []


async def test_scopes(tokens: Tokens) -> None:
    secret = await tokens.create("default", "ns", "d", scopes=frozenset({Access.READ}))
    assert await tokens.admit(secret, "ns", Access.READ) == "default"
    for access in (Access.WRITE, Access.ADMIN):
        with pytest.raises(Forbidden):
            await tokens.admit(secret, "ns", access)
    with pytest.raises(Forbidden):
        await tokens.admit(secret, None, Access.READ)
    with pytest.raises(PoolNotFound):
        await tokens.admit(f"nowhere:{secret}", "ns", Access.READ)


@virtual_time
async def test_created_here_valid_there_at_once_and_revoked_within_a_second(registry: Registry) -> None:
    async with server(registry) as here, server(registry) as there:
        secret = await here.create("default", "ns", "d")
        token = await there.check("default", "ns", secret)
        await here.delete(token)
        with pytest.raises(Unauthorized):
            await here.check("default", "ns", secret)

        async def is_refused() -> bool:
            try:
                await there.check("default", "ns", secret)
            except Unauthorized:
                return True
            return False

        async with asyncio.timeout(1):
            await until(is_refused)


async def test_known_tokens_outlive_an_outage_of_the_registry_for_a_while(registry: Registry) -> None:
    async with server(registry) as patient, server(registry, grace_s=0.0) as strict:
        secret = await patient.create("default", "ns", "d")
        assert await strict.check("default", "ns", secret)
        registry.down = True
        assert await patient.check("default", "ns", secret)
        with pytest.raises(StoreUnavailable):
            await strict.check("default", "ns", secret)
        with pytest.raises(StoreUnavailable):
            await patient.check("default", "ns", "unknown, and nobody can tell")
        registry.down = False
        assert await strict.check("default", "ns", secret)


async def test_dev_lets_everybody_in_but_not_into_pools_that_do_not_exist(registry: Registry) -> None:
    async with server(registry, dev=True) as tokens:
        for text in ("", "anything", "second:", "second:anything"):
            assert await tokens.admit(text, "any", Access.ADMIN) == split(text)[0]
            assert await tokens.admit(text, None, Access.ADMIN) == split(text)[0]
        with pytest.raises(PoolNotFound):
            await tokens.admit("nowhere:x", "any", Access.READ)
