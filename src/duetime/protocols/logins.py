"""Logins with a password, to the admin API and to the console.

Passwords are kept as argon2 hashes: those of accounts in duetime.toml, those of users in the registry. An attempt is
counted before the password is checked, so that concurrent attempts cannot exceed the limit together; a correct password
removes its count.
"""

import asyncio
import functools
import hashlib
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from starlette.types import Scope

from duetime.model.errors import InvalidRequest, Unauthorized
from duetime.protocols.rate_limits import RateLimits

if TYPE_CHECKING:
    from argon2 import PasswordHasher

T = TypeVar("T")

SHORTEST_PASSWORD = 10
LONGEST_PASSWORD = 1024
WINDOW_MS = 300_000
PER_ADDRESS = 10
PER_NAME = 50
"""Failed logins allowed within the window, per client address and per user name."""
REMEMBERED = 256
HASHING = 2
"""Passwords that are checked concurrently; each check needs 64 MiB of memory."""


@functools.cache
def _hasher() -> "PasswordHasher":
    from argon2 import PasswordHasher  # noqa: PLC0415 - a server without accounts never needs it

    return PasswordHasher()


def hash_password(password: str) -> str:
    """Slow: call it in a thread. Raises InvalidRequest."""
    if not SHORTEST_PASSWORD <= len(password) <= LONGEST_PASSWORD:
        raise InvalidRequest(
            f"password must have at least {SHORTEST_PASSWORD} and at most {LONGEST_PASSWORD} characters"
        )
    return _hasher().hash(password)


@functools.cache
def _nobody() -> str:
    """Unknown users are compared with this hash, so that the time of the check does not show which users exist."""
    return hash_password(secrets.token_hex())


def _matches(hashed: str | None, password: str) -> bool:
    from argon2.exceptions import Argon2Error, InvalidHashError  # noqa: PLC0415 - as above

    try:
        return _hasher().verify(hashed or _nobody(), password.encode(errors="surrogateescape")) and hashed is not None
    except (Argon2Error, InvalidHashError):
        return False


class Logins:
    """`accounts` are the users of duetime.toml with the hashes of their passwords."""

    def __init__(self, limits: RateLimits, accounts: Mapping[str, str]) -> None:
        self._limits = limits
        self._accounts = accounts
        self._hashing = asyncio.Semaphore(HASHING)
        self._key = secrets.token_bytes(32)
        self._remembered: set[bytes] = set()
        self._checking: dict[bytes, asyncio.Task[None]] = {}

    async def attempt(self, scope: Scope, name: str, check: Callable[[], Awaitable[T]]) -> T:
        """Returns what `check` returns. If `check` raises, the attempt stays counted. Raises TooManyRequests."""
        client = scope["client"][0] if scope.get("client") else "socket"
        by_address = await self._limits.count(f"login/address/{client}", PER_ADDRESS, WINDOW_MS)
        by_name = await self._limits.count(f"login/name/{name[:64]}", PER_NAME, WINDOW_MS)
        found = await check()
        await self._limits.refund(by_address)
        await self._limits.refund(by_name)
        return found

    async def matches(self, hashed: str | None, password: str) -> bool:
        """Compares a password with a hash; None is the hash of a user who does not exist."""
        async with self._hashing:
            return await asyncio.to_thread(_matches, hashed, password)

    async def check_account(self, scope: Scope, user: str, password: str) -> None:
        """For a request that carries an account's password. Raises Unauthorized, TooManyRequests.

        A password that was right is remembered as a keyed hash, and equal requests share one check.
        """
        given = f"{user}\0{password}".encode(errors="surrogateescape")
        key = hashlib.blake2b(given, key=self._key).digest()
        if key in self._remembered:
            return
        task = self._checking.get(key)
        if task is None:
            task = self._checking[key] = asyncio.create_task(self._attempt_account(scope, user, password, key))
            task.add_done_callback(lambda _: self._checking.pop(key))
        await asyncio.shield(task)

    async def _attempt_account(self, scope: Scope, user: str, password: str, key: bytes) -> None:
        async def check() -> None:
            if not await self.matches(self._accounts.get(user), password):
                raise Unauthorized

        await self.attempt(scope, user, check)
        if len(self._remembered) >= REMEMBERED:
            self._remembered.clear()
        self._remembered.add(key)
