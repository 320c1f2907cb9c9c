"""`duetime token ...`: who may use a namespace.

With a store URL the records are written to that store's registry, which every server on it follows within a second.
With an http URL the admin API is asked; its port is not the one that jobs go to, and it may want a user and password,
as in http://user:password@127.0.0.1:7778.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

import httpx
import typer

from duetime.cli.options import Target, takes_options
from duetime.cli.output import Answer, note, safe
from duetime.client.transport import is_http
from duetime.doors.rate_limits import RateLimits
from duetime.doors.tokens import EVERYTHING, Access, Tokens, digest_of, split
from duetime.doors.tokens import LABEL as LABEL_LENGTH
from duetime.engine.registry_copy import RegistryCopy
from duetime.errors import InvalidRequest, NotFound, StoreUnavailable, Unauthorized
from duetime.names import DEFAULT_POOL, check_namespace
from duetime.settings import mask
from duetime.stores.open import open_store

Answered = TypeVar("Answered")

DEADLINE_S = 10.0

PoolOption = Annotated[str, typer.Option(metavar="NAME", help="The pool that the namespace lives in.")]


class TokenNotFound(NotFound):
    """There is no such token."""

    code = "token_not_found"


@dataclass(frozen=True)
class ListedToken:
    """A token as it may be shown. The admin API does not tell scopes."""

    label: str
    description: str
    scopes: Sequence[Access] | None


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
        tokens: dict[str, str] = self._ask("GET", "")["tokens"]
        return [ListedToken(split(name)[1], description, None) for name, description in tokens.items()]

    def revoke(self, text: str) -> None:
        self._ask("DELETE", "/" + quote(text, safe=""))

    def _ask(self, method: str, rest: str, *, data: dict[str, str] | None = None) -> dict[str, Any]:
        address = f"{self.url.rstrip('/')}/token/{quote(self.namespace, safe='')}{rest}"
        try:
            reply = httpx.request(method, address, params={"pool": self.pool}, data=data, timeout=DEADLINE_S)
        except httpx.TransportError as error:
            raise StoreUnavailable(f"the admin API cannot be reached at {mask(self.url)}: {error}") from error
        match reply.status_code:
            case 200 | 201:
                return reply.json()
            case 204:
                return {}
            case 401:
                raise Unauthorized(f"{mask(self.url)} wants a user and password: http://user:password@host:7778")
            case 404 | 405:
                raise NotFound(f"{mask(self.url)} is not an admin API; tokens are made there, usually on port 7778")
            case _:
                raise InvalidRequest(f"the admin API refuses: {_reason(reply)}")


def _reason(reply: httpx.Response) -> str:
    try:
        return str(reply.json()["error"])
    except (ValueError, KeyError, TypeError):
        return f"status {reply.status_code}"


def _where(target: Target, pool: str) -> StoreTokens | ServerTokens:
    kind = ServerTokens if is_http(target.address) else StoreTokens
    return kind(target.address, check_namespace(target.space), pool)


@dataclass(frozen=True)
class CreateOptions:
    description: Annotated[str, typer.Option(metavar="TEXT", help="Who will use it.")] = "made by duetime token create"
    scope: Annotated[
        list[Access],
        typer.Option(
            help="read: take and finish jobs; write: add and recall them; admin: dead letters and whole queues. "
            "Repeatable; everything if not given."
        ),
    ] = field(default_factory=list[Access])
    pool: PoolOption = DEFAULT_POOL


@takes_options
def create(options: CreateOptions, target: Target) -> None:
    """Make a token for the namespace. It is shown this once; only its hash is kept."""
    scopes = frozenset(options.scope) or EVERYTHING
    secret = split(_where(target, options.pool).create(options.description, scopes))[1]
    text = secret if options.pool == DEFAULT_POOL else f"{options.pool}:{secret}"
    document = {
        "namespace": target.space,
        "pool": options.pool,
        "token": text,
        "label": digest_of(secret)[:LABEL_LENGTH],
        "description": options.description,
        "scopes": sorted(scopes),
    }
    Answer(as_json=target.json).tell(document, text)
    if not target.json:
        note(f"for {target.space}, may {', '.join(sorted(scopes))}; keep it, it is not shown again")


@takes_options
def list_tokens(target: Target, pool: PoolOption = DEFAULT_POOL) -> None:
    """List the namespace's tokens by their labels."""
    known = _where(target, pool).list_tokens()
    if not known and not target.json:
        note(f"no tokens for {target.space}")
        return
    documents = [
        {
            "namespace": target.space,
            "pool": pool,
            "label": one.label,
            "description": one.description,
            "scopes": one.scopes,
        }
        for one in known
    ]
    columns = {
        "label": [one.label for one in known],
        "may": ["?" if one.scopes is None else " ".join(one.scopes) for one in known],
        "description": [safe(one.description) for one in known],
    }
    Answer(as_json=target.json).table(documents, columns)


@takes_options
def revoke(
    revoked: Annotated[str, typer.Argument(metavar="TOKEN", help="The token or its label.")],
    target: Target,
    pool: PoolOption = DEFAULT_POOL,
) -> None:
    """Refuse a token from now on; other servers follow within a second."""
    chosen, name = split(revoked) if ":" in revoked else (pool, revoked)
    where = _where(target, chosen)
    labels = {one.label for one in where.list_tokens()}
    label = name if name in labels else digest_of(name)[:LABEL_LENGTH]
    if label not in labels:
        raise TokenNotFound(f"{target.space} has no such token")
    where.revoke(f"{chosen}:{label}")
    Answer(as_json=target.json).tell(
        {"namespace": target.space, "pool": chosen, "label": label, "revoked": True}, f"{label} revoked"
    )
