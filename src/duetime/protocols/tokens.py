"""Tokens: what their bearers may do, and in which namespace.

A token is valid for one (pool, namespace) pair. Only its SHA-256 is kept, in the registry; the secret is shown once, in
the answer to its creation, and everywhere else a short label (the start of the hash) is shown in its place. A lookup
goes by the hash, so there is no secret to compare byte by byte.

Every process checks against its own copy of the registry, which knows of a revocation by any process within a second;
a token that is not in the copy is looked up in the registry itself before it is refused. While the registry
cannot be reached, tokens that were known stay valid for `grace_s` (nothing can be revoked without it), so that an
outage of its store does not take down pools on other stores; after that every check raises StoreUnavailable.
"""

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Container, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

import msgspec

from duetime.engine.registry_copy import RegistryCopy
from duetime.engine.schedules import SCHEDULES
from duetime.model.errors import Forbidden, InvalidName, PoolNotFound, Unauthorized
from duetime.model.ids import ALPHABET
from duetime.model.names import DEFAULT_POOL
from duetime.stores.registry import Record, Registry

KIND = "token"
LENGTH = 26
"""Characters of a new token: 130 random bits, in the format of the ids that lmstfy's clients expect."""
LABEL = 8
DIGESTS = 1024
LONGEST_REMEMBERED = 128
GRACE_S = 60.0


class Access(StrEnum):
    """Read: reserve, inspect and finish jobs. Write: add and recall them. Admin: dead letters and whole queues."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


EVERYTHING = frozenset(Access)
READ_WRITE = frozenset({Access.READ, Access.WRITE})
"""The scopes of a new token by default."""


class Token(NamedTuple):
    """A token without its secret."""

    pool: str
    namespace: str
    digest: str
    description: str = ""
    scopes: frozenset[Access] = EVERYTHING

    @property
    def key(self) -> str:
        """The token's name in the registry; no part can hold a slash."""
        return f"{self.pool}/{self.namespace}/{self.digest}"

    @classmethod
    def of_key(cls, key: str) -> "Token":
        pool, namespace, digest = key.split("/")
        return cls(pool, namespace, digest)

    @property
    def label(self) -> str:
        return self.digest[:LABEL]

    def require(self, access: str) -> None:
        """Raises Forbidden."""
        if access not in self.scopes:
            raise Forbidden(f"token must have the scope {access}")


class TokenRecord(msgspec.Struct, frozen=True):
    """The value of a token's record."""

    description: str
    scopes: list[Access] = msgspec.field(default_factory=lambda: list(Access))


def split(text: str) -> tuple[str, str]:
    """`pool:secret` or `secret`: the pool and the secret."""
    pool, colon, secret = text.partition(":")
    return (pool, secret) if colon else (DEFAULT_POOL, text)


# A token is its bytes, and as text these are UTF-8, in every protocol; surrogates stand for bytes that are not.


def token_text(raw: bytes) -> str:
    return raw.decode(errors="surrogateescape")


def bearer(headers: Mapping[bytes, bytes]) -> str:
    """The text behind `Authorization: Bearer`, empty if there is none."""
    kind, _, token = headers.get(b"authorization", b"").partition(b" ")
    return token_text(token.strip()) if kind.lower() == b"bearer" else ""


def token_in_query(raw: bytes) -> str:
    """The first `token=` of a query string, empty if there is none."""
    for pair in raw.split(b"&"):
        name, _, value = pair.partition(b"=")
        if name == b"token":
            return token_text(unquote_to_bytes(value.replace(b"+", b" ")))
    return ""


def same_secret(given: str, expected: str) -> bool:
    """Compares in constant time."""
    return hmac.compare_digest(_bytes_of(given), _bytes_of(expected))


def digest_of(secret: str) -> str:
    return hashlib.sha256(_bytes_of(secret)).hexdigest()


def _bytes_of(secret: str) -> bytes:
    return secret.encode(errors="surrogateescape")


def make_secret() -> str:
    return "".join([ALPHABET[byte & 31] for byte in secrets.token_bytes(LENGTH)])


class Tokens:
    """`pools` holds the names of those that exist. With `dev` any token, or none, may do everything everywhere."""

    def __init__(
        self,
        registry_copy: RegistryCopy,
        registry: Callable[[], Registry],
        pools: Container[str],
        *,
        dev: bool = False,
        grace_s: float = GRACE_S,
    ) -> None:
        self._registry_copy = registry_copy
        self._registry = registry
        self._pools = pools
        self._dev = dev
        self.grace_s = grace_s
        self._decoded: dict[str, tuple[int, Token]] = {}
        self._digests: dict[str, str] = {}

    # --- for the protocols

    def require_dev(self) -> None:
        """Raises Forbidden except with --dev. No token allows a request about all namespaces."""
        if not self._dev:
            raise Forbidden("request must name a namespace: a token is for one namespace")

    def require_pool(self, pool: str) -> None:
        if pool not in self._pools:
            raise PoolNotFound.of(pool)

    async def check(self, pool: str, namespace: str, secret: str) -> Token:
        """The token of this secret. Raises Unauthorized, or StoreUnavailable if the token cannot be checked."""
        digest = self._digests.get(secret) or self._digest(secret)
        if self._dev:
            return Token(pool, namespace, digest)
        if not secret:
            raise Unauthorized("token not found")
        if time.monotonic() > self._registry_copy.seen_at + self.grace_s:
            await self._registry_copy.refresh()
        key = f"{pool}/{namespace}/{digest}"
        record = self._registry_copy.get(KIND, key)
        if record is None:
            # Another process may have made the token a moment ago.
            await self._registry_copy.refresh()
            record = self._registry_copy.get(KIND, key)
            if record is None:
                raise Unauthorized("invalid token")
        return self._read(record)

    def _digest(self, secret: str) -> str:
        """The hash of a secret, remembered because clients send the same few secrets with every request."""
        digest = digest_of(secret)
        if len(secret) <= LONGEST_REMEMBERED:
            if len(self._digests) >= DIGESTS:
                self._digests.clear()
            self._digests[secret] = digest
        return digest

    def _read(self, record: Record) -> Token:
        """The record of a token, decoded once per version."""
        known = self._decoded.get(record.key)
        if known is None or known[0] != record.version:
            known = self._decoded[record.key] = record.version, _token(record)
        return known[1]

    # --- for administration

    async def create(
        self,
        pool: str,
        namespace: str,
        description: str,
        *,
        secret: str = "",
        scopes: frozenset[Access] = READ_WRITE,
    ) -> str:
        """Make a token, of the given secret or a new one, and return the secret.

        Raises PoolNotFound, VersionConflict if it exists, and InvalidName for Duetime's own namespace: a client that
        writes there makes schedules for every namespace.
        """
        self.require_pool(pool)
        if namespace == SCHEDULES.namespace:
            raise InvalidName(
                f"namespace of a token cannot be {namespace!r}, which Duetime uses itself: choose another name"
            )
        secret = secret or make_secret()
        token = Token(pool, namespace, digest_of(secret), description, scopes)
        value = msgspec.json.encode(TokenRecord(description, sorted(scopes)))
        await self._registry().put(KIND, token.key, value, if_version=0)
        await self._registry_copy.refresh()
        return secret

    async def delete(self, token: Token) -> None:
        """Revoke a token. This process refuses it immediately, every other one within a second."""
        await self._registry().delete(KIND, token.key)
        self._decoded.pop(token.key, None)
        await self._registry_copy.refresh()

    async def list_tokens(self, pool: str, namespace: str) -> Sequence[Token]:
        """Raises PoolNotFound."""
        self.require_pool(pool)
        await self._registry_copy.refresh()
        return [self._read(record) for record in self._registry_copy.list_records(KIND, f"{pool}/{namespace}/")]

    async def find(self, namespace: str, text: str) -> Token:
        """The token that an administrator means: the token itself or its label, with or without a pool.

        One that does not exist is answered too, as it would be: a limit may be there before its token.
        Raises PoolNotFound.
        """
        pool, name = split(text)
        known = await self.list_tokens(pool, namespace)
        meant = Token(pool, namespace, digest_of(name))
        exact = (token for token in known if token.digest == meant.digest)
        labelled = (token for token in known if token.label == name)
        return next(exact, None) or next(labelled, meant)


def _token(record: Record) -> Token:
    kept = msgspec.json.decode(record.value, type=TokenRecord)
    return Token.of_key(record.key)._replace(description=kept.description, scopes=frozenset(kept.scopes))
