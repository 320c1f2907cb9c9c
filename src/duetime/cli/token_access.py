"""Tokens and their limits, where they are kept: in the registry of a store, or behind the admin API of a server.

With a store URL the records are written to that store's registry, which every server on it follows within a second.
With an http URL the admin API of that server does it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
from msgspec.structs import asdict

from duetime.cli.admin_api import AdminApi, admin_address
from duetime.cli.options import Target
from duetime.client.transport import is_http
from duetime.engine.registry_copy import RegistryCopy
from duetime.model.errors import NotFound
from duetime.model.names import check_namespace
from duetime.protocols.rate_limits import Limit, RateLimits
from duetime.protocols.tokens import LABEL as LABEL_LENGTH
from duetime.protocols.tokens import Access, Tokens, digest_of, split
from duetime.stores.open import open_store

Answered = TypeVar("Answered")


class TokenNotFound(NotFound):
    """There is no such token."""

    code = "token_not_found"


@dataclass(frozen=True)
class ListedToken:
    """A token as it may be shown."""

    label: str
    description: str
    scopes: Sequence[Access]


class EveryPool:
    """A registry keeps tokens for any pool: which pools exist is a setting of the server."""

    def __contains__(self, name: object) -> bool:
        return bool(name)


@dataclass(frozen=True)
class StoreTokens:
    """Tokens in the registry of a store."""

    url: str
    namespace: str
    pool: str

    def create(self, description: str, scopes: frozenset[Access]) -> str:
        async def make(tokens: Tokens, _: RateLimits) -> str:
            return await tokens.create(self.pool, self.namespace, description, scopes=scopes)

        return self._run(make)

    def list_tokens(self) -> list[ListedToken]:
        async def look(tokens: Tokens, _: RateLimits) -> list[ListedToken]:
            found = await tokens.list_tokens(self.pool, self.namespace)
            return [ListedToken(one.label, one.description, sorted(one.scopes)) for one in found]

        return self._run(look)

    def revoke(self, text: str) -> None:
        async def remove(tokens: Tokens, limits: RateLimits) -> None:
            token = await tokens.find(self.namespace, text)
            await tokens.delete(token)
            await limits.delete(token)

        self._run(remove)

    def list_limits(self) -> dict[str, Limit]:
        async def look(_: Tokens, limits: RateLimits) -> dict[str, Limit]:
            found = await limits.list_limits(refresh=True)
            return {
                one.label: limit for one, limit in found if (one.pool, one.namespace) == (self.pool, self.namespace)
            }

        return self._run(look)

    def set_limit(self, label: str, limit: Limit | None) -> None:
        async def change(tokens: Tokens, limits: RateLimits) -> None:
            token = await tokens.find(self.namespace, f"{self.pool}:{label}")
            await (limits.put(token, limit) if limit else limits.delete(token))

        self._run(change)

    def _run(self, work: Callable[[Tokens, RateLimits], Awaitable[Answered]]) -> Answered:
        async def run() -> Answered:
            store = await open_store(self.url)
            try:
                registry_copy = RegistryCopy(lambda: store.registry)
                return await work(
                    Tokens(registry_copy, lambda: store.registry, EveryPool()),
                    RateLimits(registry_copy, lambda: store.registry),
                )
            finally:
                await store.close()

        return asyncio.run(run())


@dataclass(frozen=True)
class ServerTokens:
    """Tokens through the admin API of a server."""

    url: str
    namespace: str
    pool: str

    def create(self, description: str, scopes: frozenset[Access]) -> str:
        form = {"description": description, "scopes": ",".join(sorted(scopes))}
        return str(self._ask("POST", "", data=form)["token"])

    def list_tokens(self) -> list[ListedToken]:
        found = self._ask("GET", "", params={"scopes": "1"})
        return [
            ListedToken(split(name)[1], description, found["scopes"][name])
            for name, description in found["tokens"].items()
        ]

    def revoke(self, text: str) -> None:
        self._ask("DELETE", "/" + quote(text, safe=""))

    def list_limits(self) -> dict[str, Limit]:
        found = AdminApi(self.url).send("GET", "/limits", params={"force_update": "1"})
        return {
            split(one["token"])[1]: msgspec.convert(one["limiter"], Limit)
            for one in found
            if one["namespace"] == self.namespace and split(one["token"])[0] == self.pool
        }

    def set_limit(self, label: str, limit: Limit | None) -> None:
        rest = f"/{quote(f'{self.pool}:{label}', safe='')}/limit"
        if limit is None:
            self._ask("DELETE", rest)
        else:
            self._ask("PUT", rest, json=asdict(limit))

    def _ask(self, method: str, rest: str, *, params: dict[str, str] | None = None, **sent: Any) -> Any:
        path = f"/token/{quote(self.namespace, safe='')}{rest}"
        return AdminApi(self.url).send(method, path, params={"pool": self.pool, **(params or {})}, **sent)


def token_access(target: Target, pool: str) -> StoreTokens | ServerTokens:
    namespace = check_namespace(target.space)
    if is_http(admin_address(target)):
        return ServerTokens(admin_address(target), namespace, pool)
    return StoreTokens(admin_address(target), namespace, pool)


def label_of(where: StoreTokens | ServerTokens, text: str) -> str:
    """The label of a token that is given by itself or by its label. Raises TokenNotFound."""
    labels = {one.label for one in where.list_tokens()}
    label = text if text in labels else digest_of(text)[:LABEL_LENGTH]
    if label not in labels:
        raise TokenNotFound(f"{where.namespace} has no such token")
    return label
