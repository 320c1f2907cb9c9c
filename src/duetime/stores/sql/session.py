"""A session on a database server that saves round trips.

A statement without an answer is put off, and goes to the server together with the next one whose answer is waited for,
or with the commit. So a step of six statements takes two or three round trips.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any

Rows = list[tuple[Any, ...]]
Command = tuple[str, Mapping[str, object]]
"""The name of a query, and its parameters."""

_BEGIN: Command = ("begin", {})
_BEGIN_READING: Command = ("begin_reading", {})
_COMMIT: Command = ("commit", {})
_ROLLBACK: Command = ("rollback", {})


class NotCommitted(Exception):
    """A statement failed that was sent together with the commit: the commit did not happen. Its cause says why."""


class DatabaseSession(ABC):
    """One connection, which belongs to one thread. Every method may raise the driver's errors."""

    def __init__(self) -> None:
        self._later: list[Command] = []
        self.opened_at = monotonic()
        self.is_committing = False
        """Whether the last round trip had a commit: a connection that was lost in it leaves the outcome unknown."""
        self.failed_at: int | None = None
        """Which command of the last round trip the server refused; None if it was not a command that failed."""

    @property
    @abstractmethod
    def is_lost(self) -> bool: ...

    @property
    @abstractmethod
    def is_in_transaction(self) -> bool: ...

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def _run(self, commands: Sequence[Command]) -> list[Rows]:
        """Run commands in one round trip, and answer the rows of each. After one that fails, none runs.

        Sets `failed_at` before it raises the error of a command.
        """

    def _check(self) -> None:
        """Raises the driver's error if the server is known to have ended the connection."""
        return

    def begin(self, *, read_only: bool) -> None:
        self.is_committing = False
        self._later = [_BEGIN_READING if read_only else _BEGIN]

    def put_off(self, command: Command) -> None:
        self._later.append(command)

    def fetch(self, commands: Sequence[Command]) -> list[Rows]:
        """The answers of these commands, which run after those that were put off."""
        later, self._later = self._later, []
        return self._run([*later, *commands])[len(later) :]

    def commit(self) -> None:
        """Raises NotCommitted if a statement failed that was put off."""
        if self.is_in_transaction or len(self._later) > 1:
            self.fetch_and_commit(())
        else:
            self._later = []  # nothing but the begin was put off

    def fetch_and_commit(self, commands: Sequence[Command]) -> list[Rows]:
        """As `fetch` and `commit`, in one round trip."""
        if not self.is_in_transaction:
            self._check()
        later, self._later = self._later, []
        self.is_committing = True
        before = len(later) + len(commands)
        try:
            return self._run([*later, *commands, _COMMIT])[len(later) : before]
        except Exception as error:
            if self.failed_at is not None and self.failed_at < before:
                raise NotCommitted from error
            raise

    def rollback(self) -> None:
        self._later = []
        if self.is_in_transaction:
            self._run([_ROLLBACK])
