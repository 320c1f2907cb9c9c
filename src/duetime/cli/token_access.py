"""The tokens of a namespace and their limits, in the registry of a store or through the admin API of a server."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
from msgspec.structs import asdict

from duetime.cli.options import Target
from duetime.client.admin import AdminCall, send_admin
from duetime.engine.registry_copy import RegistryCopy
from duetime.model.errors import NotFound
from duetime.model.names import check_namespace
from duetime.protocols.rate_limits import Limit, RateLimits
from duetime.protocols.tokens import LABEL as LABEL_LENGTH
from duetime.protocols.tokens import Access, Tokens, digest_of, split
from duetime.stores.registry import Registry

Answer = TypeVar("Answer")


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


class NamespaceTokens:
    """Blocking; every method is one AdminCall."""

    def __init__(self, target: Target, pool: str) -> None:
        self._url, self._pool = target.admin_address, pool
        self._namespace = check_namespace(target.space)

    def create(self, description: str, scopes: frozenset[Access]) -> str:
        return self._send(
            "POST",
            self._path(),
            lambda tokens, _: tokens.create(self._pool, self._namespace, description, scopes=scopes),
            lambda answer: str(answer["token"]),
            data={"description": description, "scopes": ",".join(sorted(scopes))},
        )

    def list_tokens(self) -> list[ListedToken]:
        async def run(tokens: Tokens, _: RateLimits) -> list[ListedToken]:
            found = await tokens.list_tokens(self._pool, self._namespace)
            return [ListedToken(one.label, one.description, sorted(one.scopes)) for one in found]

        def parse(answer: Mapping[str, Any]) -> list[ListedToken]:
            return [
                ListedToken(split(name)[1], text, answer["scopes"][name]) for name, text in answer["tokens"].items()
            ]

        return self._send("GET", self._path(), run, parse, params={"pool": self._pool, "scopes": "1"})

    def label_of(self, text: str) -> str:
        """The label of a token that is given by itself or by its label. Raises TokenNotFound."""
        labels = {one.label for one in self.list_tokens()}
        label = text if text in labels else digest_of(text)[:LABEL_LENGTH]
        if label not in labels:
            raise TokenNotFound(f"{self._namespace} has no such token")
        return label

    def revoke(self, label: str) -> None:
        async def run(tokens: Tokens, limits: RateLimits) -> None:
            token = await tokens.find(self._namespace, f"{self._pool}:{label}")
            await tokens.delete(token)
            await limits.delete(token)

        self._send("DELETE", self._path(label), run)

    def list_limits(self) -> dict[str, Limit]:
        async def run(_: Tokens, limits: RateLimits) -> dict[str, Limit]:
            found = await limits.list_limits(refresh=True)
            here = self._pool, self._namespace
            return {one.label: limit for one, limit in found if (one.pool, one.namespace) == here}

        def parse(answer: Sequence[Mapping[str, Any]]) -> dict[str, Limit]:
            return {
                split(one["token"])[1]: msgspec.convert(one["limiter"], Limit)
                for one in answer
                if one["namespace"] == self._namespace and split(one["token"])[0] == self._pool
            }

        return self._send("GET", "/limits", run, parse, params={"force_update": "1"})

    def set_limit(self, label: str, limit: Limit | None) -> None:
        async def run(tokens: Tokens, limits: RateLimits) -> None:
            token = await tokens.find(self._namespace, f"{self._pool}:{label}")
            await (limits.put(token, limit) if limit else limits.delete(token))

        path = f"{self._path(label)}/limit"
        if limit is None:
            self._send("DELETE", path, run)
        else:
            self._send("PUT", path, run, json=asdict(limit))

    def _path(self, label: str = "") -> str:
        token = f"/{quote(f'{self._pool}:{label}', safe='')}" if label else ""
        return f"/token/{quote(self._namespace, safe='')}{token}"

    def _send(
        self,
        method: str,
        path: str,
        work: Callable[[Tokens, RateLimits], Awaitable[Answer]],
        parse: Callable[[Any], Answer] | None = None,
        **sent: Any,
    ) -> Answer:
        async def run(registry: Registry) -> Answer:
            copy = RegistryCopy(lambda: registry)
            return await work(Tokens(copy, lambda: registry, EveryPool()), RateLimits(copy, lambda: registry))

        sent = {"params": {"pool": self._pool}, **sent}
        return send_admin(self._url, AdminCall(method, path, run, parse or (lambda answer: answer), sent))
