"""The verbs of a group that concern several members: finding jobs, pushing, reserving and finishing."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from duetime.model.errors import DuetimeError, LeaseLost, StoreUnavailable
from duetime.model.job import (
    STEP_BYTES,
    STEP_JOBS,
    Delivery,
    Event,
    Job,
    Lease,
    Moved,
    NewJob,
    State,
    payload_bytes,
    within_step,
)
from duetime.model.names import Queue, placing_part
from duetime.stores.base import Ask, Cursor, Page, Push, Pushed, Reserved, Store, get_all, part_of, with_parts
from duetime.stores.finishes import Finish, Finished, distinct_finishes, following_jobs
from duetime.stores.group.member import PROBLEMS, MemberProblem, named, outcome_unknown
from duetime.stores.group.members import Members

# --- find
#
# A job is searched at its homes. If it is at none of them, the layouts that other processes use are read again, and
# then every other member is asked. If a home cannot answer, its jobs do not count as gone: the answer is
# StoreUnavailable with that member's problem.

T = TypeVar("T")

ListVerb = Callable[[Sequence[int], Store], Awaitable[Sequence[Any]]]
"""Runs a verb on the ids at the given positions of the call, with one answer for each."""


async def find_each(members: Members, queue: Queue, ids: Sequence[str], verb: ListVerb) -> list[Any]:
    """One answer per id, from the first member that knows the job."""
    search = _Search(members, queue, ids, verb)
    await search.run()
    return [
        StoreUnavailable(problem.message, **problem.fields) if (problem := search.problem(place)) else answer
        for place, answer in enumerate(search.answers)
    ]


async def find_lease(members: Members, lease: Lease, verb: Callable[[Store], Awaitable[T]]) -> T:
    """The verb's answer from the member that holds the lease. Raises LeaseLost, or the problem of one of the homes."""

    async def answers(_: Sequence[int], store: Store) -> list[T | LeaseLost]:
        try:
            return [await verb(store)]
        except LeaseLost as lost:
            return [lost]

    search = _Search(members, lease.queue, [lease.id], answers)
    await search.run()
    [answer] = search.answers
    if isinstance(answer, LeaseLost | None):
        raise search.problem(0) or answer or LeaseLost.of(lease)
    return answer


class _Search:
    def __init__(self, members: Members, queue: Queue, ids: Sequence[str], verb: ListVerb) -> None:
        self._members, self._queue, self._ids, self._verb = members, queue, ids, verb
        self.answers: list[Any] = [None] * len(ids)
        self._problems: dict[int, MemberProblem] = {}
        self._asked: list[set[str]] = [set() for _ in ids]

    async def run(self) -> None:
        await self._at_homes()
        if any(map(self._is_open, range(len(self._ids)))):
            await self._members.read_again()
            await self._at_homes()
            await self._elsewhere()

    def problem(self, place: int) -> MemberProblem | None:
        """Why it is not known whether the job exists."""
        return self._problems.get(place) if self._is_open(place) else None

    def _is_open(self, place: int) -> bool:
        return self.answers[place] is None or isinstance(self.answers[place], LeaseLost | StoreUnavailable)

    async def _at_homes(self) -> None:
        while True:
            turn: dict[str, list[int]] = {}
            for place, job_id in enumerate(self._ids):
                if self._is_open(place):
                    homes = self._members.homes(self._queue, job_id)
                    name = next((name for name in homes if name not in self._asked[place]), None)
                    if name is not None:
                        turn.setdefault(name, []).append(place)
            if not turn:
                return
            for place, problem in (await self._ask(turn)).items():
                if place not in self._problems or not outcome_unknown(self._problems[place]):
                    self._problems[place] = problem

    async def _elsewhere(self) -> None:
        """Ask the members that are no homes of the job. Those that cannot answer are passed over: no known layout puts
        the job there.
        """
        turn: dict[str, list[int]] = {}
        for place in filter(self._is_open, range(len(self._ids))):
            for name in self._members.names:
                if name not in self._asked[place]:
                    turn.setdefault(name, []).append(place)
        await self._ask(turn)

    async def _ask(self, turn: dict[str, list[int]]) -> dict[int, MemberProblem]:
        for name, places in turn.items():
            for place in places:
                self._asked[place].add(name)
        answers = await self._members.ask_each({name: partial(self._verb, places) for name, places in turn.items()})
        for name, found in answers.found.items():
            for place, answer in zip(turn[name], found, strict=True):
                # LeaseLost replaces no earlier answer.
                is_answer = answer is not None and not isinstance(answer, LeaseLost)
                if is_answer or (answer is not None and self.answers[place] is None):
                    self.answers[place] = answer
        return {place: problem for name, problem in answers.problems.items() for place in turn[name]}


# --- push
#
# Each job goes to its home, or to the member where it lives already. A job whose home has changed is searched at its
# earlier homes first. If one of those cannot be asked, and its home does not know the job, then it is unknown whether
# the id is free: the request is refused, so that an id never exists twice.


class Places(Struct, frozen=True):
    """The member to which each id is to be pushed. `refused` says for which ids that is unknown, and why."""

    by_id: dict[str, str]
    refused: dict[str, MemberProblem]


async def push(members: Members, queue: Queue, requests: Sequence[Push]) -> list[Pushed | DuetimeError]:
    places = await _places(members, queue, {job.id for request in requests for job in request.jobs})
    refusals = [
        next((places.refused[job.id] for job in request.jobs if job.id in places.refused), None) for request in requests
    ]
    parts: dict[str, list[tuple[int, list[int]]]] = {}
    for number, request in enumerate(requests):
        if refusals[number]:
            continue
        shares: dict[str, list[int]] = {}
        for at, job in enumerate(request.jobs):
            shares.setdefault(places.by_id[job.id], []).append(at)
        for name, share in (shares or {members.current[0]: []}).items():
            parts.setdefault(name, []).append((number, share))

    async def send(name: str, store: Store) -> Sequence[Pushed | DuetimeError]:
        return await store.push(queue, [part_of(requests[number], share) for number, share in parts[name]])

    answers = await members.ask_each({name: partial(send, name) for name in parts})
    shares_done: list[list[tuple[list[int], Pushed | DuetimeError]]] = [[] for _ in requests]
    for name, part in parts.items():
        found = answers.found[name] if name in answers.found else [answers.problems[name]] * len(part)
        for (number, share), answer in zip(part, found, strict=True):
            shown = named(name, answer) if name in answers.found and isinstance(answer, MemberProblem) else answer
            shares_done[number].append((share, shown))
    return [
        refusal or join_parts(request.jobs, done)
        for refusal, request, done in zip(refusals, requests, shares_done, strict=True)
    ]


async def _places(members: Members, queue: Queue, ids: set[str]) -> Places:
    """Searches only the few ids whose home has changed."""
    places: dict[str, str] = {}
    moved: dict[str, list[str]] = {}
    for job_id in ids:
        homes = members.homes(queue, job_id)
        places[job_id] = homes[0]
        for old in homes[1:]:
            moved.setdefault(old, []).append(job_id)
    if not moved:
        return Places(places, {})
    found, undecided = await _find_members(members, queue, moved)
    places.update(found)
    if not undecided:
        return Places(places, {})
    at_home: dict[str, list[str]] = {}
    for job_id in undecided.keys() - found.keys():
        at_home.setdefault(places[job_id], []).append(job_id)
    known, _ = await _find_members(members, queue, at_home)
    return Places(places, {job_id: undecided[job_id] for job_id in undecided.keys() - found.keys() - known.keys()})


async def _find_members(
    members: Members, queue: Queue, ids_by_name: dict[str, list[str]]
) -> tuple[dict[str, str], dict[str, MemberProblem]]:
    """The member that has each id, and the problem for ids that could not be searched."""

    async def get(ids: list[str], store: Store) -> Sequence[Job | None]:
        return await get_all(store, queue, ids)

    answers = await members.ask_each({name: partial(get, ids) for name, ids in ids_by_name.items()})
    found = {
        job_id: name
        for name, jobs in answers.found.items()
        for job_id, job in zip(ids_by_name[name], jobs, strict=True)
        if job
    }
    return found, {job_id: problem for name, problem in answers.problems.items() for job_id in ids_by_name[name]}


def join_parts(
    jobs: Sequence[NewJob], parts: Sequence[tuple[Sequence[int], Pushed | DuetimeError]]
) -> Pushed | DuetimeError:
    """Join the answers for parts of a request into one. An error of one part is the answer, and says what else was
    done. A part that repeats a mark may answer for the jobs that it had the first time.
    """
    done = [(places, answer) for places, answer in parts if isinstance(answer, Pushed)]
    failed = [answer for _, answer in parts if isinstance(answer, DuetimeError)]
    if failed:
        # An unknown outcome comes first: jobs may be there although another member refused its part.
        error = min(failed, key=lambda one: (not outcome_unknown(one), isinstance(one, MemberProblem)))
        done = [(places, answer) for places, answer in done if places]
        if not done:
            return error
        pushed = sum(len(places) for places, _ in done)
        message = f"{error.message}; {pushed} of {len(jobs)} jobs were pushed to other members"
        return with_parts(type(error)(message, **{**error.fields, "unknown": True}), done)
    if len(done) == 1:
        return done[0][1]
    moved: dict[int, Moved] = {}
    for places, answer in done:
        if len(places) == len(answer.jobs):
            moved.update(zip(places, answer.jobs, strict=True))
    by_id = {one.id: one for _, answer in done for one in answer.jobs}
    return Pushed(
        [moved.get(at) or by_id.get(job.id) or Moved(Event.KEPT, job.id, 0) for at, job in enumerate(jobs)],
        max(answer.now for _, answer in done),
        all(answer.repeated for places, answer in done if places),
    )


# --- lists


def merge_pages(pages: Sequence[Page], limit: int) -> Page:
    """One page of those that several stores returned for the same cursor, in the order of the jobs' state."""
    ends = [Cursor.parse(page.cursor) for page in pages if page.cursor is not None]
    keyed = sorted(((Cursor.of(job), job) for page in pages for job in page.jobs), key=itemgetter(0))
    # What comes after the end of one page may come after jobs that this page does not show.
    known = [(place, job) for place, job in keyed if not ends or place <= min(ends)][:limit]
    shown = list(within_step(known, lambda pair: payload_bytes(pair[1])))
    end = shown[-1][0] if shown and len(shown) < len(keyed) else min(ends, default=None)
    return Page([job for _, job in shown], None if end is None else str(end))


# --- reserve
#
# The member with the earliest job is asked first, then the others, until every ask is served. Jobs that were leased on
# one member are delivered, even if the next member fails.


async def reserve(members: Members, queue: Queue, asks: Sequence[Ask]) -> Reserved:
    """Raises a member's problem only if no member answers."""
    heads = (await members.ask(lambda store: store.heads([queue], waiting=True))).require_one().found
    waiting = {name: head for name, [head] in heads.items() if head is not None}
    # Where no job waits, one member is asked anyway: it knows whether the queue is paused.
    names = sorted(waiting, key=lambda name: (waiting[name], name)) or list(heads)[:1]
    deliveries: list[list[Delivery]] = [[] for _ in asks]
    expired: list[Moved] = []
    problem: MemberProblem | None = None
    now, paused = 0, False
    for name in names:
        left = [_rest(ask, len(got)) for ask, got in zip(asks, deliveries, strict=True)]
        if now and (waiting.get(name, 0) > now or _is_enough(left, deliveries)):
            break
        waiting.pop(name, None)
        try:
            got = await members.call(name, lambda store, left=left: store.reserve(queue, left))
        except PROBLEMS as error:
            problem = problem or error
            continue
        for mine, more in zip(deliveries, got.deliveries, strict=True):
            mine.extend(more)
        expired += got.expired
        now, paused = max(now, got.now), paused or got.paused
        if got.next_at is not None:
            waiting[name] = got.next_at
    if not now and problem:
        raise problem
    return Reserved(deliveries, min(waiting.values(), default=None), now, expired, paused)


def _is_enough(left: Sequence[Ask], deliveries: Sequence[Sequence[Delivery]]) -> bool:
    """All asks are served, or the call is at its bound."""
    got = [delivery for share in deliveries for delivery in share]
    full = len(got) >= STEP_JOBS or sum(map(payload_bytes, got)) >= STEP_BYTES
    return full or not any(ask.limit for ask in left)


def _rest(ask: Ask, got: int) -> Ask:
    """What is left of an ask. The jobs that it got are counted against its quotas, from the first on."""
    quotas: list[int] = []
    for quota in ask.quotas:
        spent = min(quota, got)
        got -= spent
        quotas.append(quota - spent)
    left = ask.limit - sum(ask.quotas) + sum(quotas) - got
    return Ask(left, ask.ttr_ms, (quotas[0], quotas[1], quotas[2]))


# --- finish
#
# Nothing atomic spans two members. So the jobs that follow are pushed to the member that has the finished job, and its
# result is kept there. Ids that begin alike (`layout.py`) have the same home, and then that member is their home, too.
# Any other job that follows is a stranger on its member: every member is asked for its id before, so that an id that is
# taken is kept, and later it is found because a miss at the homes asks all members.


async def finish(
    members: Members, queue: Queue, finishes: Sequence[Finish]
) -> Sequence[Finished | DuetimeError | None]:
    answers: list[Finished | DuetimeError | None] = []
    for some in distinct_finishes(finishes):
        answers += await _finish(members, queue, some)
    return answers


async def _finish(
    members: Members, queue: Queue, finishes: Sequence[Finish]
) -> Sequence[Finished | DuetimeError | None]:
    strangers = sorted(
        {job.id for one in finishes for job in one.may_follow if placing_part(job.id) != placing_part(one.lease.id)}
    )
    taken, unknown = await _find_anywhere(members, queue, strangers)
    refused = {
        place: unknown[job.id]
        for place, one in enumerate(finishes)
        for job in reversed(one.may_follow)
        if job.id in unknown and job.id not in taken
    }
    open_places = [place for place in range(len(finishes)) if place not in refused]
    sent = [without_taken(one, taken) for one in finishes]

    async def send(places: Sequence[int], store: Store) -> Sequence[Finished | DuetimeError | None]:
        return await store.finish(queue, [sent[open_places[place]] for place in places])

    found = await find_each(members, queue, [finishes[place].lease.id for place in open_places], send)
    answers: dict[int, Finished | DuetimeError | None] = {**refused, **dict(zip(open_places, found, strict=True))}
    return [with_kept(one, answers[place], taken) for place, one in enumerate(finishes)]


async def _find_anywhere(
    members: Members, queue: Queue, ids: Sequence[str]
) -> tuple[Mapping[str, Moved], Mapping[str, StoreUnavailable]]:
    """The ids that are taken, and the problem for ids of which a home could not be asked."""
    if not ids:
        return {}, {}
    answers = await members.ask(partial(get_all, queue=queue, ids=ids))
    taken = {job.id: kept(job) for jobs in answers.found.values() for job in jobs if job}
    unknown: dict[str, StoreUnavailable] = {}
    for job_id in ids if answers.problems else ():
        for home in members.homes(queue, job_id):
            if problem := answers.problems.get(home):
                unknown[job_id] = StoreUnavailable(problem.message, unknown=False)
    return taken, unknown


def kept(job: Job) -> Moved:
    place = job.state.value if job.state in (State.LEASED, State.DEAD) else "waiting"
    due_at = job.due_at if place == "waiting" else 0
    return Moved(Event.KEPT, job.id, job.born, job.attempt, due_at, reason=place)


def without_taken(one: Finish, taken: Mapping[str, Moved]) -> Finish:
    """The finish without the jobs whose ids are taken elsewhere."""
    join = one.join and msgspec.structs.replace(one.join, then=[job for job in one.join.then if job.id not in taken])
    return msgspec.structs.replace(one, then=[job for job in one.then if job.id not in taken], join=join)


def with_kept(
    one: Finish, answer: Finished | DuetimeError | None, taken: Mapping[str, Moved]
) -> Finished | DuetimeError | None:
    """The answer to a finish, from that to `without_taken`."""
    if not isinstance(answer, Finished):
        return answer
    made = iter(answer.then)
    then = [taken.get(job.id) or next(made) for job in following_jobs(one, answer.joined)]
    return msgspec.structs.replace(answer, then=then)
