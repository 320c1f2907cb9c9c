"""The roles of the console, and the users that an admin made in it.

A user is a record of the registry with an argon2 hash of the password. The accounts of duetime.toml are admins.
"""

import asyncio
from collections.abc import Callable, Sequence
from enum import IntEnum

import msgspec
from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError

from duetime.engine.registry_copy import RegistryCopy
from duetime.errors import InvalidRequest, NotFound
from duetime.names import is_channel
from duetime.stores.registry import Registry

KIND = "console-user"
SHORTEST_PASSWORD = 10
LONGEST_PASSWORD = 1024


class Role(IntEnum):
    """A viewer sees, an operator acts on jobs, queues and topics, an admin also on users, tokens and alerts."""

    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3


class ConsoleUser(msgspec.Struct, frozen=True):
    """The value of a user's record; its key is the name."""

    role: Role
    password: str


class ConsoleUsers:
    def __init__(self, registry_copy: RegistryCopy, registry: Callable[[], Registry]) -> None:
        self._registry_copy = registry_copy
        self._registry = registry
        self._hasher = PasswordHasher()
        # Unknown users are compared with this, so that the time taken does not tell which users exist.
        self._nobody = self._hasher.hash("nobody")

    def get(self, name: str) -> ConsoleUser | None:
        record = self._registry_copy.get(KIND, name)
        return msgspec.json.decode(record.value, type=ConsoleUser) if record else None

    def list_users(self) -> Sequence[tuple[str, Role]]:
        records = self._registry_copy.list_records(KIND)
        return [(one.key, msgspec.json.decode(one.value, type=ConsoleUser).role) for one in records]

    async def check(self, name: str, password: str) -> Role | None:
        """The user's role if the password is right. Hashing takes a while, so a thread does it."""
        await self._registry_copy.refresh()
        user = self.get(name)
        matches = await asyncio.to_thread(self._matches, user.password if user else self._nobody, password)
        return user.role if user and matches else None

    def _matches(self, hashed: str, password: str) -> bool:
        try:
            return self._hasher.verify(hashed, password)
        except (Argon2Error, InvalidHashError):
            return False

    async def put(self, name: str, role: Role, password: str) -> None:
        if not is_channel(name):
            raise InvalidRequest("a user's name is made of ASCII letters, digits, '-', '_' and '.'")
        if not SHORTEST_PASSWORD <= len(password) <= LONGEST_PASSWORD:
            raise InvalidRequest(f"a password has at least {SHORTEST_PASSWORD} characters")
        hashed = await asyncio.to_thread(self._hasher.hash, password)
        await self._registry().put(KIND, name, msgspec.json.encode(ConsoleUser(role, hashed)))
        await self._registry_copy.refresh()

    async def delete(self, name: str) -> None:
        if not await self._registry().delete(KIND, name):
            raise NotFound(f"there is no user {name!r}")
        await self._registry_copy.refresh()
