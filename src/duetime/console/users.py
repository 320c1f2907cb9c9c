"""The roles of the console, and the users that an admin made in it.

A user is a record of the registry with an argon2 hash of the password. The accounts of duetime.toml are admins.
"""

import asyncio
from collections.abc import Callable, Sequence
from enum import IntEnum

import msgspec

from duetime.engine.registry_copy import RegistryCopy
from duetime.model.errors import InvalidRequest, NotFound
from duetime.model.names import is_channel
from duetime.protocols.logins import hash_password
from duetime.stores.registry import Registry

KIND = "console-user"


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

    def get(self, name: str) -> ConsoleUser | None:
        record = self._registry_copy.get(KIND, name)
        return msgspec.json.decode(record.value, type=ConsoleUser) if record else None

    def list_users(self) -> Sequence[tuple[str, Role]]:
        records = self._registry_copy.list_records(KIND)
        return [(one.key, msgspec.json.decode(one.value, type=ConsoleUser).role) for one in records]

    async def find(self, name: str) -> ConsoleUser | None:
        """The user as the registry has it now."""
        await self._registry_copy.refresh()
        return self.get(name)

    async def put(self, name: str, role: Role, password: str) -> None:
        if not is_channel(name):
            raise InvalidRequest("a user's name is made of ASCII letters, digits, '-', '_' and '.'")
        hashed = await asyncio.to_thread(hash_password, password)
        await self._registry().put(KIND, name, msgspec.json.encode(ConsoleUser(role, hashed)))
        await self._registry_copy.refresh()

    async def delete(self, name: str) -> None:
        if not await self._registry().delete(KIND, name):
            raise NotFound(f"there is no user {name!r}")
        await self._registry_copy.refresh()
