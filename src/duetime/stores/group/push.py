"""Pushing to a group: each job goes to its home, or to the member where it lives already.

A job whose home has changed is looked for at its earlier homes first. If one of those cannot be asked, and its home
does not know the job, then it is unknown whether the id is free: the request is refused, so that an id never exists
twice.
"""

from collections.abc import Sequence
from functools import partial

from msgspec import Struct

from duetime.model.errors import DuetimeError
from duetime.model.job import Job, Moved
from duetime.model.names import Queue
from duetime.stores.base import Push, Pushed, Store
from duetime.stores.get_all import get_all
from duetime.stores.group.member import MemberProblem, named, outcome_unknown
from duetime.stores.group.members import Members
from duetime.stores.pushed_parts import part_of, with_parts


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
        refusal or _join(len(request.jobs), done)
        for refusal, request, done in zip(refusals, requests, shares_done, strict=True)
    ]


async def _places(members: Members, queue: Queue, ids: set[str]) -> Places:
    """Only the few ids whose home has changed are looked for."""
    places: dict[str, str] = {}
    moved: dict[str, list[str]] = {}
    for job_id in ids:
        homes = members.homes(queue, job_id)
        places[job_id] = homes[0]
        for old in homes[1:]:
            moved.setdefault(old, []).append(job_id)
    if not moved:
        return Places(places, {})
    found, undecided = await _look(members, queue, moved)
    places.update(found)
    if not undecided:
        return Places(places, {})
    at_home: dict[str, list[str]] = {}
    for job_id in undecided.keys() - found.keys():
        at_home.setdefault(places[job_id], []).append(job_id)
    known, _ = await _look(members, queue, at_home)
    return Places(places, {job_id: undecided[job_id] for job_id in undecided.keys() - found.keys() - known.keys()})


async def _look(
    members: Members, queue: Queue, ids_by_name: dict[str, list[str]]
) -> tuple[dict[str, str], dict[str, MemberProblem]]:
    """The member that has each id, and the problem for ids that could not be looked for."""

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


def _join(size: int, parts: Sequence[tuple[Sequence[int], Pushed | DuetimeError]]) -> Pushed | DuetimeError:
    """Join the members' parts into one answer. An error of one part is the answer, and says what else was done."""
    done = [(places, answer) for places, answer in parts if isinstance(answer, Pushed)]
    failed = [answer for _, answer in parts if isinstance(answer, DuetimeError)]
    if failed:
        # An unknown outcome comes first: jobs may be there although another member refused its part.
        error = min(failed, key=lambda one: (not outcome_unknown(one), isinstance(one, MemberProblem)))
        if not done:
            return error
        pushed = sum(len(places) for places, _ in done)
        message = f"{error.message}; {pushed} of {size} jobs were pushed to other members"
        return with_parts(type(error)(message, **{**error.fields, "unknown": True}), done)
    if len(done) == 1:
        return done[0][1]
    jobs: list[Moved | None] = [None] * size
    for places, answer in done:
        for place, moved in zip(places, answer.jobs, strict=True):
            jobs[place] = moved
    return Pushed(
        [moved for moved in jobs if moved],
        max(answer.now for _, answer in done),
        all(answer.repeated for _, answer in done),
    )
