"""Finishing jobs of a group, with the jobs that follow from them and their results.

Nothing atomic spans two members. So the jobs that follow are pushed to the member that has the job that is finished,
and its result is kept there. Ids that begin alike (`layout.py`) have the same home, and then that member is their home,
too. Any other job that follows is a stranger on its member: every member is asked for its id before, so that an id
that is taken is kept, and later it is found because a miss at the homes asks all members.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from duetime.model.errors import DuetimeError, StoreUnavailable
from duetime.model.job import STEP_JOBS, Event, Job, Moved, State
from duetime.model.names import Queue, placing_part
from duetime.stores.base import Store
from duetime.stores.distinct_finishes import distinct_finishes
from duetime.stores.finishes import Finish, Finished, JoinCount, KeptResult
from duetime.stores.get_all import get_all
from duetime.stores.group.lookup import find_each
from duetime.stores.group.members import Members


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
    strangers = sorted({job_id for one in finishes for job_id in _strangers(one)})
    taken, unknown = await _look_everywhere(members, queue, strangers)
    refused = {
        place: unknown[job.id]
        for place, one in enumerate(finishes)
        for job in reversed(one.then)
        if job.id in unknown and job.id not in taken
    }
    open_places = [place for place in range(len(finishes)) if place not in refused]
    sent = {
        place: msgspec.structs.replace(one, then=[job for job in one.then if job.id not in taken])
        for place, one in enumerate(finishes)
    }

    async def send(store: Store, places: Sequence[int]) -> Sequence[Finished | DuetimeError | None]:
        return await store.finish(queue, [sent[open_places[place]] for place in places])

    found = await find_each(members, queue, [finishes[place].lease.id for place in open_places], send)
    answers: dict[int, Finished | DuetimeError | None] = {**refused, **dict(zip(open_places, found, strict=True))}
    return [_with_kept(one, answers[place], taken) for place, one in enumerate(finishes)]


def _strangers(one: Finish) -> list[str]:
    return [job.id for job in one.then if placing_part(job.id) != placing_part(one.lease.id)]


async def _look_everywhere(
    members: Members, queue: Queue, ids: Sequence[str]
) -> tuple[Mapping[str, Moved], Mapping[str, StoreUnavailable]]:
    """The ids that are taken, and the problem for ids of which a home could not be asked."""
    if not ids:
        return {}, {}
    answers = await members.ask(partial(get_all, queue=queue, ids=ids))
    taken = {job.id: _kept(job) for jobs in answers.found.values() for job in jobs if job}
    unknown: dict[str, StoreUnavailable] = {}
    for job_id in ids if answers.problems else ():
        for home in members.homes(queue, job_id):
            if problem := answers.problems.get(home):
                unknown[job_id] = StoreUnavailable(problem.message, unknown=False)
    return taken, unknown


def _kept(job: Job) -> Moved:
    place = job.state.value if job.state in (State.LEASED, State.DEAD) else "waiting"
    due_at = job.due_at if place == "waiting" else 0
    return Moved(Event.KEPT, job.id, job.born, job.attempt, due_at, reason=place)


def _with_kept(
    one: Finish, answer: Finished | DuetimeError | None, taken: Mapping[str, Moved]
) -> Finished | DuetimeError | None:
    if not isinstance(answer, Finished):
        return answer
    made = iter(answer.then)
    then = [taken.get(job.id) or next(made) for job in one.then]
    return msgspec.structs.replace(answer, then=[*then, *made])


async def results(members: Members, queue: Queue, ids: Sequence[str]) -> list[KeptResult | None]:
    """Asks all members: a result that is not there yet is the usual case, and must not cost a search."""
    answers = await members.ask(lambda store: store.results(queue, ids))
    reached = min(map(len, answers.require_one().found.values()))
    found: list[KeptResult | None] = []
    for kept in zip(*(part[:reached] for part in answers.found.values()), strict=True):
        there = [one for one in kept if one]
        if not there:
            answers.require_all()
        found.append(max(there, key=lambda one: one.born, default=None))
    return found


async def joins(members: Members, queue: Queue, after: str) -> list[JoinCount]:
    """A join is counted on one member, but for one whose home has changed meanwhile: the greater count is answered."""
    answers = (await members.ask(lambda store: store.joins(queue, after=after))).require_all()
    ends = [part[-1].name for part in answers.values() if len(part) == STEP_JOBS]
    counting: dict[str, JoinCount] = {}
    for one in (one for part in answers.values() for one in part):
        if one.name not in counting or counting[one.name].count < one.count:
            counting[one.name] = one
    return [counting[name] for name in sorted(counting) if not ends or name <= min(ends)][:STEP_JOBS]


async def raise_joins(members: Members, queue: Queue, counts: Sequence[JoinCount]) -> None:
    """Each at the home of the jobs that join, whose ids begin alike. Raises a member's problem."""
    shares: dict[str, list[JoinCount]] = {}
    for one in counts:
        shares.setdefault(members.homes(queue, one.name)[0], []).append(one)

    async def send(share: list[JoinCount], store: Store) -> None:
        await store.raise_joins(queue, share)

    (await members.ask_each({name: partial(send, share) for name, share in shares.items()})).require_all()
