"""The data types of `Store.finish` and `Store.results`."""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from duetime.model.job import Lease, Moved, NewJob


class Join(Struct, frozen=True):
    """The last of `of` finishes with a join of this name pushes its `then` jobs, the follow-up jobs of all of them.

    The store counts for `life_ms` after the last of them. Each carries the same join.
    """

    name: str
    of: int
    then: Sequence[NewJob]
    life_ms: int


class JoinCount(Struct, frozen=True):
    """How many finishes a join has seen, and for how long the store goes on counting."""

    name: str
    count: int
    left_ms: int


class SeenJoin(Struct, frozen=True, omit_defaults=True):
    """A join as one of its finishes saw it, for the journal. `then` is the id of the first job that follows from it.
    `seen` is how many finishes the store had counted with this one, 0 if the finish found its job gone.
    """

    name: str
    of: int
    then: str
    life_ms: int
    seen: int = 0


class Finish(Struct, frozen=True):
    """The end of a job, with its follow-up jobs and its result. `then` are new jobs for the same queue, with different
    ids and without `born` and `attempt`. `result` is kept for `result_ttl_ms` if both are given.
    """

    lease: Lease
    then: Sequence[NewJob] = ()
    result: bytes | None = None
    result_ttl_ms: int = 0
    join: Join | None = None

    @property
    def may_follow(self) -> Sequence[NewJob]:
        """Its own jobs, and those of its join, which only the last finish of the join pushes."""
        return [*self.then, *self.join.then] if self.join else self.then

    @property
    def keeps_result(self) -> bool:
        return self.result is not None and self.result_ttl_ms > 0


class Finished(Struct, frozen=True):
    """`acked` is the end of the job, `then` has one Moved per job that follows: accepted or kept.

    `joined` is how many finishes its join has seen with this one. If they are all, `then` has the join's jobs as well.
    """

    acked: Moved
    then: Sequence[Moved]
    now: int
    joined: int = 0


class KeptResult(Struct, frozen=True):
    """The result of the job `id` with this `born`, kept until `kept_until`."""

    id: str
    born: int
    result: bytes
    kept_until: int


def seen_join(one: Finish, answer: object) -> SeenJoin | None:
    """The join of a finish with this answer; None without a join."""
    if one.join is None:
        return None
    join, seen = one.join, answer.joined if isinstance(answer, Finished) else 0
    return SeenJoin(join.name, join.of, join.then[0].id, join.life_ms, seen)


def following_jobs(one: Finish, joined: int) -> Sequence[NewJob]:
    """The jobs that follow from a finish, in the order of `Finished.then`, if its join has seen `joined` with it."""
    return one.may_follow if one.join and joined == one.join.of else one.then


def distinct_finishes(finishes: Sequence[Finish]) -> Iterator[Sequence[Finish]]:
    """Portions in which no id occurs twice, for stores that read all ids of a portion before they change any.

    The portions follow each other, so that each finish sees what the ones before it did. A job that follows one of its
    own id does not count as a repetition.
    """
    batch: list[Finish] = []
    seen: set[str] = set()
    for one in finishes:
        ids = {one.lease.id, *(job.id for job in one.then)}
        if batch and not seen.isdisjoint(ids):
            yield batch
            batch, seen = [], set()
        batch.append(one)
        seen |= ids
    if batch:
        yield batch
