"""The members of a group: asking several of them together, and the records of the group's layouts that they keep.

Each member's registry holds a record of the layouts under which jobs were pushed. Processes of one deployment may have
different settings while they are restarted one after the other, so a process reads the records again every second
and never forgets a layout that it has seen. It writes down its own layout wherever that is missing.

A layout also changes when an operator drains a member while the servers run (stores/registry.py).
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Generic, TypeVar

from msgspec import Struct

from duetime.duties import Rounds, run_duty
from duetime.model.errors import InvalidSettings, StoreFull, StoreUnavailable, VersionConflict
from duetime.model.names import Queue
from duetime.stores.base import Store
from duetime.stores.group import layout
from duetime.stores.group.layout import Layout
from duetime.stores.group.member import Member, MemberProblem, unknown_first
from duetime.stores.group.registry import GroupRegistry
from duetime.stores.registry import GROUP_DRAIN, read_drain

T = TypeVar("T")

KIND = "group"
"""The registry record on each member that remembers the group's layouts."""
READ_AGAIN_S = 1.0
SPREAD_S = 2.5
"""A process with a new layout waits this long before it pushes by it, so that all other processes have read of it."""
WRITES_TRIED = 5
EMPTY_S = 10.0
"""How often a process checks whether a member that drains by record is empty."""

log = logging.getLogger("duetime.stores")


class Answers(Struct, Generic[T], frozen=True):
    """By member: the answers of those that could answer, and the problems of the others."""

    found: Mapping[str, T]
    problems: Mapping[str, MemberProblem]

    def require_one(self) -> "Answers[T]":
        """Raises a problem if there is no answer at all, one with an unknown outcome first."""
        if not self.found:
            raise unknown_first(self.problems.values())[0]
        return self

    def require_all(self) -> Mapping[str, T]:
        """Raises the first problem."""
        for problem in self.problems.values():
            raise problem
        return self.found


class Members:
    """`openers` open the stores by name; members in `drain` take no new jobs."""

    def __init__(self, group: str, openers: Mapping[str, Callable[[], Awaitable[Store]]], drain: Sequence[str]) -> None:
        current = tuple(sorted(set(openers) - set(drain)))
        if not current:
            raise InvalidSettings(f"group {group}: at least one member must take new jobs")
        self._group = group
        self._members = {name: Member(name, openers[name], self._ready) for name in sorted(openers)}
        self.registry = GroupRegistry(self)
        self._settings_drain = self._drain = frozenset(drain)
        self._record_drain: frozenset[str] = frozenset()
        self._announced: list[Layout] = []
        self._checked_at: dict[str, float] = {}
        # Another process that does not drain yet pushes to all named members, even if no record says so.
        self._layouts = layout.merge(current, [tuple(self._members)])
        self._recorded: set[Layout] = set()
        self._emptied: set[str] = set()
        self._is_open = False
        self._readers: list[asyncio.Task[None]] = []

    # --- opening

    async def open(self) -> None:
        """Raises InvalidSettings when a member that may have jobs is not named, StoreUnavailable when all are down."""
        # All starts must end before one raises: a store that opened after the close would stay open.
        starts = await asyncio.gather(*(member.start() for member in self), return_exceptions=True)
        for error in filter(None, starts):
            raise error
        if not any(member.is_up for member in self):
            raise StoreUnavailable(f"no member of group {self._group} can be reached")
        if self.first.is_up:
            await self.ask(lambda store: self.registry.restore_first(store.registry), [self.first.name])
            for current in (await self.ask(self._wanted_layout, [self.first.name])).found.values():
                self._use(current)
        is_new = bool(self._recorded) and self._layouts.current not in self._recorded
        # Write only now: when the first member was read, the records of the others were not known yet.
        (await self.ask(self._write)).require_one()
        await self.registry.refresh_copies()
        self._is_open = True
        self._readers = [asyncio.create_task(self._keep_reading(member)) for member in self]
        if is_new:
            await asyncio.sleep(SPREAD_S)

    async def close(self) -> None:
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        await asyncio.gather(*(member.close() for member in self), return_exceptions=True)

    # --- asking

    def __iter__(self):
        return iter(self._members.values())

    @property
    def names(self) -> list[str]:
        return list(self._members)

    @property
    def first(self) -> Member:
        return next(iter(self))

    @property
    def current(self) -> Layout:
        return self._layouts.current

    def homes(self, queue: Queue, job_id: str) -> list[str]:
        """The members where the job can be: its home first, each once. Some may not be named in the settings."""
        return self._layouts.homes(queue, job_id)

    async def call(self, name: str, verb: Callable[[Store], Awaitable[T]]) -> T:
        """Raises a MemberProblem."""
        if (member := self._members.get(name)) is None:
            raise StoreUnavailable(f"member {name} of group {self._group} is not in this process's settings: reload it")
        return await member.call(verb)

    async def ask(self, verb: Callable[[Store], Awaitable[T]], names: Sequence[str] | None = None) -> Answers[T]:
        """Ask all members, or the named ones, at the same time."""
        return await self.ask_each({name: verb for name in (self.names if names is None else names)})

    async def ask_each(self, verbs: Mapping[str, Callable[[Store], Awaitable[T]]]) -> Answers[T]:
        """Ask each member its own verb, all at the same time. An error that is no problem of a member is raised after
        all calls have ended.
        """
        answers = await asyncio.gather(*(self.call(name, verbs[name]) for name in verbs), return_exceptions=True)
        found: dict[str, T] = {}
        problems: dict[str, MemberProblem] = {}
        for name, answer in zip(verbs, answers, strict=True):
            if isinstance(answer, MemberProblem):
                problems[name] = answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found[name] = answer
        return Answers(found, problems)

    def drain_of(self, name: str) -> str:
        """Returns whether a member drains, in the words of StoreInfo."""
        return "" if name not in self._drain else "empty" if name in self._emptied else "draining"

    # --- the records

    async def read_again(self) -> None:
        """Read the layouts that other processes have written down since."""
        await self.ask(self._read, [member.name for member in self if member.is_up])

    async def _ready(self, member: Member, store: Store) -> None:
        known = await self._read(store)
        if not self._is_open:
            if lost := sorted({name for one in known for name in one} - self._members.keys()):
                raise InvalidSettings(
                    f"group {self._group}: member {lost[0]} may still have jobs; "
                    "name it, and in drain, until it is empty"
                )
            # The first process that drains must not forget the member: other processes push to it until they drain.
            if member.name in self._drain and self._layouts.current in known and await _is_empty(store):
                self._emptied.add(member.name)
                log.info("group_member_empty", extra={"group": self._group, "member": member.name})
            return
        try:
            if member is self.first:
                await self.registry.restore_first(store.registry)
            await self._write(store)
        except StoreFull as full:
            log.warning("group_record_not_written", extra={"member": member.name, "error": full.message})

    async def _keep_reading(self, member: Member) -> None:
        async def read(store: Store) -> None:
            if self._layouts.current not in await self._read(store):
                await self._write(store)
            if member is self.first:
                await self.registry.restore_first(store.registry)
                await self._follow_drain(store)
            if member.name in self._record_drain & self._drain - self._emptied:
                await self._check_if_empty(member, store)

        async def keep_reading() -> float:
            if member.is_up:
                await self.ask(read, [member.name])
            if member is self.first and member.is_up:
                await self.registry.refresh_copies()
            return READ_AGAIN_S

        await run_duty(Rounds(f"layout of group member {member.name}", keep_reading), first_after_s=READ_AGAIN_S)

    # --- drains by record

    async def _wanted_layout(self, store: Store) -> Layout:
        """The members that take new jobs, by the settings and the record. The present layout if that leaves none."""
        self._record_drain = read_drain(await store.registry.get(GROUP_DRAIN, self._group))
        drain = self._settings_drain | self._record_drain
        return tuple(name for name in self._members if name not in drain) or self._layouts.current

    async def _follow_drain(self, store: Store) -> None:
        current = await self._wanted_layout(store)
        if current == self._layouts.current:
            return
        # All processes must search jobs at their new homes before this one pushes to them.
        self._announced = [current]
        await self.ask(self._write)
        await asyncio.sleep(SPREAD_S)
        self._use(current)
        self._announced = []
        await self.ask(self._write)

    def _use(self, current: Layout) -> None:
        if current == self._layouts.current:
            return
        self._layouts = layout.merge(current, [self._layouts.current, *self._layouts.earlier])
        self._drain = frozenset(self._members) - frozenset(current)
        self._emptied &= self._drain
        self._checked_at = {name: time.monotonic() for name in self._drain}
        log.info("group_layout_changed", extra={"group": self._group, "members": ",".join(current)})

    async def _check_if_empty(self, member: Member, store: Store) -> None:
        """A member that drains and is empty leaves the records, so that it can be taken out of the settings.

        A process that does not know of the drain yet, and pushes to the member, records it again.
        """
        if time.monotonic() - self._checked_at.get(member.name, 0.0) < EMPTY_S:
            return
        self._checked_at[member.name] = time.monotonic()
        if await _is_empty(store):
            self._emptied.add(member.name)
            log.info("group_member_empty", extra={"group": self._group, "member": member.name})
            await self.ask(self._write)

    async def _read(self, store: Store) -> Sequence[Layout]:
        record = await store.registry.get(KIND, self._group)
        known = layout.read(record.value) if record else ()
        self._recorded.update(known)
        if not {*known} <= {self._layouts.current, *self._layouts.earlier}:
            self._layouts = layout.merge(self._layouts.current, [*self._layouts.earlier, *known])
        return known

    async def _write(self, store: Store) -> None:
        """Add this process's layout to the record, and take out the members that it found empty.

        A member without a record gets the layouts from the other members' records.
        """
        for _ in range(WRITES_TRIED):
            record = await store.registry.get(KIND, self._group)
            known = [*(layout.read(record.value) if record else sorted(self._recorded)), *self._announced]
            value = layout.write(layout.without(layout.merge(self._layouts.current, known), self._emptied))
            if record and record.value == value:
                return
            try:
                await store.registry.put(KIND, self._group, value, if_version=record.version if record else 0)
            except VersionConflict:
                continue
            return


async def _is_empty(store: Store) -> bool:
    queues = await store.queues()
    return not any(counts.total for counts in await store.counts(queues)) if queues else True
