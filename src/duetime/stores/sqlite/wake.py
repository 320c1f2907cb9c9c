"""How processes that share one SQLite file wake each other.

Each process that listens has a datagram socket in a folder next to the file; a process that commits something worth
waking for sends it to all of these sockets. Datagrams get lost (a full buffer, a process that cannot bind), so every
announcing transaction carries the next number of a count kept in the file: a listener reads that count every 50 ms
while somebody waits, else once a second, and a number that it has not received means "check every queue".
"""

import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from duetime.model.errors import NOT_JSON
from duetime.stores.base import Wake
from duetime.stores.sql.wake import WakeHub

POLL_S = 0.05
MAX_WAKES = 64
"""A transaction with more wakes than this announces "check every queue", so that the datagram stays small."""

_SUFFIX = ".sock"
_PROC = Path("/proc/self/fd")


class NumberedAnnouncement(Struct, frozen=True, array_like=True):
    """What one transaction announces. `number` counts announcing transactions; a version of 0 means unchanged."""

    number: int
    registry_version: int
    wakes: Sequence[Wake]


def numbered(number: int, registry_version: int, wakes: Sequence[Wake]) -> NumberedAnnouncement:
    return NumberedAnnouncement(number, registry_version, wakes if len(wakes) <= MAX_WAKES else [Wake()])


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(NumberedAnnouncement).decode


class Mailboxes:
    """The folder with one socket per listening process. `send` is for any thread, the rest for the loop."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._outgoing = _datagram_socket()
        self.own: socket.socket | None = None
        self._own_name = ""

    def bind(self) -> socket.socket | None:
        """Open this process's own mailbox. None where the system refuses one; then only the poll wakes this process."""
        name = f"{os.getpid()}-{secrets.token_hex(4)}{_SUFFIX}"
        box = _datagram_socket()
        try:
            box.bind(self._address(name))
        except OSError:
            box.close()
            return None
        self.own, self._own_name = box, name
        return box

    def unbind(self) -> None:
        if self.own is not None:
            self.own.close()
            self._remove(self._own_name)
            self.own, self._own_name = None, ""

    def send(self, announcement: NumberedAnnouncement) -> None:
        """Send to every other process that listens; one that cannot take it finds out by the count in the file."""
        names = [name for name in self._names() if name != self._own_name]
        payload = _encode(announcement) if names else b""
        for name in names:
            try:
                self._outgoing.sendto(payload, self._address(name))
            except ConnectionRefusedError:
                self._remove(name)  # its process is gone
            except OSError:
                continue

    def _names(self) -> list[str]:
        with suppress(OSError):
            return [name for name in os.listdir(self._directory) if name.endswith(_SUFFIX)]
        return []

    def close(self) -> None:
        if self._directory >= 0:
            self.unbind()
            self._outgoing.close()
            os.close(self._directory)
            self._directory = -1

    def _address(self, name: str) -> str:
        # A socket's path has at most 108 bytes. The folder's path may be longer, so its file descriptor is used.
        return f"{_PROC}/{self._directory}/{name}" if _PROC.exists() else str(self._folder / name)

    def _remove(self, name: str) -> None:
        with suppress(OSError):
            os.unlink(name, dir_fd=self._directory)


def _datagram_socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made


class Meta(Struct, frozen=True):
    """The file's one row. `epoch` is another one after the file was made anew."""

    epoch: str
    wakes: int
    registry_version: int


class SqliteWakeHub(WakeHub):
    """`read_meta` reads the counts in the file."""

    def __init__(self, mailboxes: Mailboxes, read_meta: Callable[[], Awaitable[Meta]]) -> None:
        super().__init__("sqlite")
        self._mailboxes, self._read_meta = mailboxes, read_meta
        self._received = 0
        self._early: set[int] = set()

    async def _join(self) -> None:
        if self._receiving is None and (box := self._mailboxes.bind()) is not None:
            self._loop.add_reader(box, self._read_box, box)
        await super()._join()
        self._catch_up(await self._read_meta())

    def _stop(self) -> None:
        super()._stop()
        if (box := self._mailboxes.own) is not None:
            self._loop.remove_reader(box)
        self._mailboxes.unbind()

    # --- announcements

    def announce(self, announcements: Sequence[NumberedAnnouncement]) -> None:
        """Called in any thread: send to the other processes and to the listeners in this one."""
        for announcement in announcements:
            if self._receiving is not None:
                with suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(self.receive, announcement)
            self._mailboxes.send(announcement)

    def receive(self, announcement: NumberedAnnouncement) -> None:
        """Called in the loop, for a datagram or this process's own writer."""
        self._count(announcement.number)
        self._see_version(announcement.registry_version)
        for wake in announcement.wakes:
            self._deliver(wake)

    def _read_box(self, box: socket.socket) -> None:
        with suppress(BlockingIOError):
            while True:
                # A datagram of another program is ignored; the count in the file shows whether one was missed.
                with suppress(*NOT_JSON):
                    self.receive(_decode(box.recv(65_536)))

    async def run_once(self) -> float:
        self._catch_up(await self._read_meta())
        return POLL_S

    def _catch_up(self, meta: Meta) -> None:
        self._see_version(meta.registry_version)
        if meta.wakes > self._received:
            self._received = meta.wakes
            self._early = {number for number in self._early if number > meta.wakes}
            self._deliver(Wake())

    def _count(self, number: int) -> None:
        if number > self._received:
            self._early.add(number)
        while self._received + 1 in self._early:
            self._received += 1
            self._early.discard(self._received)
