"""Sessions: who is logged in. A browser holds a random secret, the registry holds its hash and the session.

So every process of the server knows a session, and an admin can end it. It also ends when the user, the account or the
token that it was opened with is removed, and when the password changes.
"""

import secrets
import time
from collections.abc import Callable, Sequence

import msgspec

from duetime.console.users import ConsoleUsers, Role
from duetime.engine.registry_copy import RegistryCopy
from duetime.model.settings import Settings
from duetime.protocols.tokens import KIND as TOKEN_KIND
from duetime.protocols.tokens import digest_of
from duetime.stores.registry import Registry

KIND = "console-session"
LIFE_S = 12 * 3600
LABEL = 12


class Session(msgspec.Struct, frozen=True):
    """A session that was opened with a token sees one `namespace` in one `pool`; if they are empty, it sees everything.

    `token` is the key of that token; `password` is a digest of the password's hash, so that a new password ends the
    session, and so does a new user of the same name. Times are epoch seconds.
    """

    user: str
    role: Role
    since: float
    until: float
    pool: str = ""
    namespace: str = ""
    token: str = ""
    password: str = ""
    is_account: bool = False

    def sees(self, pool: str, namespace: str) -> bool:
        return not self.namespace or (self.pool, self.namespace) == (pool, namespace)


DEV = Session("dev", Role.ADMIN, 0, 0)
"""The session of every visitor with --dev."""


class Sessions:
    def __init__(
        self,
        registry_copy: RegistryCopy,
        registry: Callable[[], Registry],
        users: ConsoleUsers,
        settings: Settings,
    ) -> None:
        self._registry_copy = registry_copy
        self._registry = registry
        self._users = users
        self._settings = settings

    async def open(self, session: Session) -> str:
        """Store a session and return the secret for the browser's cookie. Also deletes sessions that have run out."""
        secret = secrets.token_urlsafe(32)
        await self._registry().put(KIND, digest_of(secret), msgspec.json.encode(session))
        for record in self._registry_copy.list_records(KIND):
            if msgspec.json.decode(record.value, type=Session).until < time.time():
                await self._registry().delete(KIND, record.key)
        await self._registry_copy.refresh()
        return secret

    async def find(self, secret: str) -> Session | None:
        """The session of a cookie, while it lasts."""
        if not secret:
            return None
        key = digest_of(secret)
        record = self._registry_copy.get(KIND, key)
        if record is None:
            # Another process may have opened the session a moment ago.
            await self._registry_copy.refresh()
            record = self._registry_copy.get(KIND, key)
        if record is None:
            return None
        session = msgspec.json.decode(record.value, type=Session)
        return session if self._holds(session) else None

    def _holds(self, session: Session) -> bool:
        if session.until < time.time():
            return False
        if session.token:
            return self._registry_copy.get(TOKEN_KIND, session.token) is not None
        if session.is_account:
            hashed = self._settings.accounts.get(session.user)
            return hashed is not None and digest_of(hashed) == session.password
        user = self._users.get(session.user)
        return user is not None and user.role == session.role and digest_of(user.password) == session.password

    def list_sessions(self) -> Sequence[tuple[str, Session]]:
        """The sessions that are open, each with the label that `end` takes."""
        records = self._registry_copy.list_records(KIND)
        found = [(one.key[:LABEL], msgspec.json.decode(one.value, type=Session)) for one in records]
        return [(label, session) for label, session in found if self._holds(session)]

    async def close(self, secret: str) -> None:
        await self._end(digest_of(secret))

    async def end(self, label: str) -> None:
        for record in self._registry_copy.list_records(KIND, label):
            await self._end(record.key)

    async def _end(self, key: str) -> None:
        await self._registry().delete(KIND, key)
        await self._registry_copy.refresh()
