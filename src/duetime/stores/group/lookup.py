"""Finding the jobs of a call on the members of a group.

A job is looked for at its homes. If it is at none of them, the layouts that other processes use are read again, and
then every other member is asked. If a home cannot answer, its jobs do not count as gone: the answer is StoreUnavailable
with that member's problem.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from duetime.model.errors import LeaseLost, StoreUnavailable
from duetime.model.job import Lease
from duetime.model.names import Queue
from duetime.stores.base import Store
from duetime.stores.group.member import PROBLEMS, MemberProblem, outcome_unknown, unknown_first
from duetime.stores.group.members import Members

T = TypeVar("T")

ListVerb = Callable[[Store, Sequence[int]], Awaitable[Sequence[Any]]]
"""Runs a verb on the ids at the given positions of the call, with one answer for each."""


async def find_each(members: Members, queue: Queue, ids: Sequence[str], verb: ListVerb) -> list[Any]:
    """One answer per id, from the first member that knows the job."""
    search = _Search(members, queue, ids, verb)
    await search.at_homes()
    if any(search.is_open(place) for place in range(len(ids))):
        await members.read_again()
        await search.at_homes()
        await search.elsewhere()
    return search.answers


class _Search:
    def __init__(self, members: Members, queue: Queue, ids: Sequence[str], verb: ListVerb) -> None:
        self._members, self._queue, self._ids, self._verb = members, queue, ids, verb
        self.answers: list[Any] = [None] * len(ids)
        self._problems: dict[int, MemberProblem] = {}
        self._asked: list[set[str]] = [set() for _ in ids]

    def is_open(self, place: int) -> bool:
        return self.answers[place] is None or isinstance(self.answers[place], LeaseLost | StoreUnavailable)

    async def at_homes(self) -> None:
        while True:
            turn: dict[str, list[int]] = {}
            for place, job_id in enumerate(self._ids):
                if self.is_open(place):
                    homes = self._members.homes(self._queue, job_id)
                    name = next((name for name in homes if name not in self._asked[place]), None)
                    if name is not None:
                        turn.setdefault(name, []).append(place)
            if not turn:
                break
            for place, problem in (await self._ask(turn)).items():
                if place not in self._problems or not outcome_unknown(self._problems[place]):
                    self._problems[place] = problem
        for place, problem in self._problems.items():
            if self.is_open(place):
                self.answers[place] = StoreUnavailable(problem.message, **problem.fields)

    async def elsewhere(self) -> None:
        """Ask the members that are no homes of the job. Those that cannot answer are passed over: no known layout puts
        the job there.
        """
        turn: dict[str, list[int]] = {}
        for place in filter(self.is_open, range(len(self._ids))):
            for name in self._members.names:
                if name not in self._asked[place]:
                    turn.setdefault(name, []).append(place)
        await self._ask(turn)

    async def _ask(self, turn: dict[str, list[int]]) -> dict[int, MemberProblem]:
        for name, places in turn.items():
            for place in places:
                self._asked[place].add(name)
        answers = await self._members.ask_each({name: partial(self._verb_at, places) for name, places in turn.items()})
        for name, found in answers.found.items():
            for place, answer in zip(turn[name], found, strict=True):
                # LeaseLost replaces no earlier answer: that another member cannot be asked says more.
                is_news = answer is not None and not isinstance(answer, LeaseLost)
                if is_news or (answer is not None and self.answers[place] is None):
                    self.answers[place] = answer
        return {place: problem for name, problem in answers.problems.items() for place in turn[name]}

    async def _verb_at(self, places: Sequence[int], store: Store) -> Sequence[Any]:
        return await self._verb(store, places)


async def find_lease(members: Members, lease: Lease, verb: Callable[[Store], Awaitable[T]]) -> T:
    """The verb's answer from the member that holds the lease. Raises LeaseLost, or the problem of one of the homes."""
    problems: list[MemberProblem] = []
    lost = LeaseLost()
    async for name, is_home in _candidates(members, lease):
        try:
            return await members.call(name, verb)
        except LeaseLost as error:
            lost = error
        except PROBLEMS as error:
            if is_home:
                problems.append(error)
    raise unknown_first(problems)[0] if problems else lost


async def _candidates(members: Members, lease: Lease) -> AsyncIterator[tuple[str, bool]]:
    """The members to ask, and whether each is a home of the job."""
    homes = members.homes(lease.queue, lease.id)
    for name in homes:
        yield name, True
    await members.read_again()
    new = [name for name in members.homes(lease.queue, lease.id) if name not in homes]
    for name in new:
        yield name, True
    for name in members.names:
        if name not in homes and name not in new:
            yield name, False
