"""Tokens: hashed, shown once, revoked soon, and what an outage of the registry means for them."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from duetime.engine.registry_copy import RegistryCopy
from duetime.engine.schedules import SCHEDULES
from duetime.model.clock import SystemClock
from duetime.model.errors import InvalidName, StoreUnavailable, Unauthorized
from duetime.protocols.tokens import LABEL, Tokens, digest_of, make_secret, split
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
