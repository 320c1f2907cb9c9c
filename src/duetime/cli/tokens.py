"""`duetime token ...`, `limit ...` and `user ...`: who may use a namespace, and how often."""

import getpass
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

import msgspec
from msgspec.structs import asdict

from duetime.cli.options import AnswerForm, Target, argument, option
from duetime.cli.output import safe
from duetime.engine.registry_copy import RegistryCopy
from duetime.model.clock import duration_ms
from duetime.model.errors import InvalidRequest, NotFound
from duetime.model.humanise import span
from duetime.model.names import DEFAULT_POOL, check_namespace
from duetime.protocols.logins import hash_password
from duetime.protocols.rate_limits import Limit, RateLimits
from duetime.protocols.tokens import LABEL as LABEL_LENGTH
from duetime.protocols.tokens import READ_WRITE, Access, Tokens, digest_of, split
from duetime.stores.registry import Registry

PoolOption = Annotated[str, option("NAME", "The pool that the namespace lives in.")]
TokenArgument = Annotated[str, argument("TOKEN", "The token or its label.")]


@dataclass(frozen=True)
class CreateOptions:
    description: Annotated[str, option("TEXT", "Who will use it.")] = "created by duetime token create"
    scope: Annotated[
        list[Access],
        option(
            None,
            "read: lease and finish jobs; write: add and delete jobs; admin: failed jobs and whole queues. "
            "Repeatable; read and write if not given.",
        ),
    ] = field(default_factory=list[Access])
    pool: PoolOption = DEFAULT_POOL


def create(options: CreateOptions, target: Target) -> None:
    """Create a token for the namespace. It is shown only once; its hash is kept.

    Examples:
        duetime token create --namespace shop --description 'the web shop'
        duetime token create --scope write --url redis://localhost
    """
    scopes = frozenset(options.scope) or READ_WRITE
    secret = split(NamespaceTokens(target, options.pool, new=True).create(options.description, scopes))[1]
    text = secret if options.pool == DEFAULT_POOL else f"{options.pool}:{secret}"
    document = {
        "namespace": target.space,
        "pool": options.pool,
        "token": text,
        "label": digest_of(secret)[:LABEL_LENGTH],
        "description": options.description,
        "scopes": sorted(scopes),
    }
    target.answer.show(document, text)
    target.answer.note(f"for {target.space}, scopes {', '.join(sorted(scopes))}; keep it, it is not shown again")


def list_tokens(target: Target, pool: PoolOption = DEFAULT_POOL) -> None:
    """List the namespace's tokens by their labels.

    Examples:
        duetime token list
        duetime token list --url http://user:password@host:7778
    """
    known = NamespaceTokens(target, pool).list_tokens()
    documents = [{"namespace": target.space, "pool": pool, **vars(one)} for one in known]
    columns = {
        "label": [one.label for one in known],
        "may": [" ".join(one.scopes) for one in known],
        "description": [safe(one.description) for one in known],
    }
    target.answer.table(documents, columns, nothing=f"no tokens for {target.space}")


def revoke(revoked: TokenArgument, target: Target, pool: PoolOption = DEFAULT_POOL) -> None:
    """Refuse a token from now on; other servers follow within a second.

    Examples:
        duetime token revoke 5f2a09c1
    """
    chosen, name = split(revoked) if ":" in revoked else (pool, revoked)
    where = NamespaceTokens(target, chosen)
    label = where.label_of(name)
    where.revoke(label)
    target.answer.show({"namespace": target.space, "pool": chosen, "label": label, "revoked": True}, f"{label} revoked")


def list_limits(target: Target, pool: PoolOption = DEFAULT_POOL) -> None:
    """List the limits of the namespace's tokens."""
    found = sorted(NamespaceTokens(target, pool).list_limits().items())
    columns = {
        "label": [label for label, _ in found],
        "reads ": [_shown(limit.read) for _, limit in found],
        "writes ": [_shown(limit.write) for _, limit in found],
        "every": [span(limit.interval * 1000) for _, limit in found],
    }
    target.answer.table(
        [_document(target, pool, *one) for one in found], columns, nothing=f"no limits in {target.space}"
    )


@dataclass(frozen=True)
class LimitOptions:
    read: Annotated[int, option("N", "Requests that take or read jobs; 0: no limit.", min=0)] = 0
    write: Annotated[int, option("N", "Requests that add or change jobs; 0: no limit.", min=0)] = 0
    every: Annotated[str, option("DURATION", "The period that the limits are for, in whole seconds.")] = "1m"
    pool: PoolOption = DEFAULT_POOL


def set_limit(limited: TokenArgument, options: LimitOptions, target: Target) -> None:
    """Limit a token's requests; those beyond the limit get 429 with Retry-After.

    Examples:
        duetime limit set 5f2a09c1 --write 1000 --read 5000 --every 1m
    """
    interval_ms = duration_ms(options.every)
    if not (options.read or options.write):
        raise InvalidRequest("limit must have --read N, --write N or both")
    if interval_ms < 1000 or interval_ms % 1000:
        raise InvalidRequest(f"--every must be a whole number of seconds, got {options.every!r}")
    where = NamespaceTokens(target, options.pool)
    limit = Limit(interval_ms // 1000, options.read, options.write)
    label = where.label_of(limited)
    where.set_limit(label, limit)
    text = f"{label}: {_shown(limit.read)} reads, {_shown(limit.write)} writes every {span(interval_ms)}"
    target.answer.show(_document(target, options.pool, label, limit), text)


def remove_limit(limited: TokenArgument, target: Target, pool: PoolOption = DEFAULT_POOL) -> None:
    """Remove a token's limit.

    Examples:
        duetime limit remove 5f2a09c1
    """
    where = NamespaceTokens(target, pool)
    label = where.label_of(limited)
    where.set_limit(label, None)
    document = {"namespace": target.space, "pool": pool, "label": label, "removed": True}
    target.answer.show(document, f"{label}: no limit")


def _shown(number: int) -> str:
    return f"{number:,}" if number > 0 else "any"


def _document(target: Target, pool: str, label: str, limit: Limit) -> dict[str, Any]:
    shown = {"read": limit.read, "write": limit.write, "every_s": limit.interval}
    return {"namespace": target.space, "pool": pool, "label": label, **shown}


def hash_(form: AnswerForm) -> None:
    """Print the hash of a password, for the table accounts in duetime.toml.

    Asks for the password in a terminal, else reads it from stdin. It is never an argument: other users of the machine
    can see those.
    """
    if sys.stdin.isatty():
        password = getpass.getpass("Password: ")
        if getpass.getpass("Again: ") != password:
            raise InvalidRequest("the two passwords must be the same")
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    hashed = hash_password(password)
    form.answer.show({"hash": hashed}, hashed)


# --- the registry of a store, or the admin API of a server

Found = TypeVar("Found")


class TokenNotFound(NotFound):
    """The namespace has no such token."""

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
    """The tokens of a namespace and their limits. Blocking; every method is one call of the admin API. `new` as for
    `Target.connect`.
    """

    def __init__(self, target: Target, pool: str, *, new: bool = False) -> None:
        self._target, self._pool, self._new = target, pool, new
        self._namespace = check_namespace(target.space)

    def create(self, description: str, scopes: frozenset[Access], secret: str = "") -> str:
        """Raises VersionConflict or InvalidRequest if a token with this secret exists."""
        return self._send(
            "POST",
            self._path(),
            lambda tokens, _: tokens.create(self._pool, self._namespace, description, secret=secret, scopes=scopes),
            lambda answer: str(answer["token"]),
            data={
                "description": description,
                "scopes": ",".join(sorted(scopes)),
                **({"token": secret} if secret else {}),
            },
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
        work: Callable[[Tokens, RateLimits], Awaitable[Found]],
        parse: Callable[[Any], Found] | None = None,
        **sent: Any,
    ) -> Found:
        async def run(registry: Registry) -> Found:
            copy = RegistryCopy(lambda: registry)
            return await work(Tokens(copy, lambda: registry, EveryPool()), RateLimits(copy, lambda: registry))

        sent = {"params": {"pool": self._pool}, **sent}
        return self._target.admin(method, path, run, new=self._new, **({"parse": parse} if parse else {}), **sent)
