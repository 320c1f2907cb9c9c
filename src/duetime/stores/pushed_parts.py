"""Jobs that were pushed although their request failed.

The jobs of one request to a group of stores live on several members, and one of them may fail. The answer to the
request is then that member's error. The jobs that the other members took are kept with the error, so that the journal
can record them.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from duetime.model.errors import DuetimeError
from duetime.stores.base import Push, Pushed

Parts = Sequence[tuple[Sequence[int], Pushed]]
"""Pairs of the positions of some jobs in a request and the answer for these jobs."""

_PARTS = "_pushed_parts"


def with_parts(error: DuetimeError, parts: Parts) -> DuetimeError:
    setattr(error, _PARTS, parts)
    return error


def pushed_parts(
    requests: Sequence[Push], answers: Sequence[Pushed | DuetimeError]
) -> tuple[Sequence[Push], Sequence[Pushed | DuetimeError]]:
    """The same requests and answers, but a request that was done in part is replaced by the parts that were done."""
    if not [answer for answer in answers if isinstance(answer, DuetimeError) and hasattr(answer, _PARTS)]:
        return requests, answers
    found: list[tuple[Push, Pushed | DuetimeError]] = []
    for request, answer in zip(requests, answers, strict=True):
        parts: Parts | None = getattr(answer, _PARTS, None)
        if parts is None:
            found.append((request, answer))
        else:
            found += [(part_of(request, places), pushed) for places, pushed in parts]
    return [request for request, _ in found], [answer for _, answer in found]


def part_of(request: Push, places: Sequence[int]) -> Push:
    """The same request with only the jobs at these positions."""
    if len(places) == len(request.jobs):
        return request
    return replace(request, jobs=[request.jobs[place] for place in places])
