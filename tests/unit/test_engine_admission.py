"""What the engine lets in: the check at the door."""

import pytest

from duetime.engine.requests import PushRequest, check_job
from duetime.model.clock import MAX_DURATION
from duetime.model.errors import BodyTooLarge, InvalidId, InvalidRequest, InvalidTime
from duetime.model.job import NewJob
from duetime.model.names import Queue
from duetime.stores.base import Push

LONGEST_MS = (2**32 - 1) * 1000


@pytest.mark.parametrize("job", [NewJob("a", b"", delay_ms=LONGEST_MS), NewJob("a", b"", ttl_ms=LONGEST_MS)])
def test_the_longest_delay_and_ttl_that_lmstfy_knows_are_taken(job: NewJob) -> None:
    assert MAX_DURATION == LONGEST_MS
    check_job(job, max_body=10)


@pytest.mark.parametrize(
    ("job", "error"),
    [
        (NewJob("a", b"", delay_ms=LONGEST_MS + 1), InvalidTime),
        (NewJob("a", b"", delay_ms=-1), InvalidTime),
        (NewJob("a", b"", ttl_ms=LONGEST_MS + 1), InvalidTime),
        (NewJob("a", b"", ttl_ms=-1), InvalidTime),
        (NewJob("a", b"", due_at=-1), InvalidTime),
        (NewJob("a", b"x" * 11), BodyTooLarge),
        (NewJob("", b""), InvalidId),
        (NewJob("a", b"", tries=65_536), InvalidRequest),
        (NewJob("a", b"", attributes={"": "x"}), InvalidRequest),
    ],
)
def test_values_out_of_bounds_are_refused(job: NewJob, error: type[InvalidRequest]) -> None:
    with pytest.raises(error):
        check_job(job, max_body=10)


def test_an_empty_push_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        PushRequest(Queue("shop", "mail"), Push([])).check(10)
