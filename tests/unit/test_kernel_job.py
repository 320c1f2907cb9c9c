"""The nouns: defaults, being frozen, and that the transition table is complete."""

import msgspec
import pytest

from duetime.model.errors import BY_CODE
from duetime.model.job import TRANSITIONS, Counts, Delivery, Job, Lease, Moved, NewJob, Priority, State
from duetime.model.names import Queue

QUEUE = Queue("shop", "mail")


def test_a_new_job_is_due_immediately_with_five_tries_and_no_ttl() -> None:
    job = NewJob("a", b"hello")

    assert msgspec.structs.asdict(job) == {
        "id": "a",
        "body": b"hello",
        "delay_ms": 0,
        "due_at": None,
        "ttl_ms": 0,
        "tries": 5,
        "priority": Priority.NORMAL,
        "attributes": {},
        "born": 0,
        "attempt": 0,
    }


def test_two_new_jobs_do_not_share_their_attributes() -> None:
    assert NewJob("a", b"").attributes is not NewJob("b", b"").attributes


@pytest.mark.parametrize(
    "noun",
    [
        NewJob("a", b""),
        Lease(QUEUE, "a", 1, 1),
        Delivery(Lease(QUEUE, "a", 1, 1), b"", 1, 2, Priority.HIGH, 5, 1),
        Job(QUEUE, "a", 1, State.READY, b"", 1, Priority.LOW, 5),
        Moved("accepted", "a", 1),  # type: ignore[arg-type]
        Counts(),
    ],
    ids=lambda noun: type(noun).__name__,
)
def test_nouns_are_frozen(noun: msgspec.Struct) -> None:
    field = noun.__struct_fields__[0]

    with pytest.raises(AttributeError):
        setattr(noun, field, None)


def test_the_total_counts_what_is_there_and_not_what_expired() -> None:
    assert Counts(delayed=1, ready=2, leased=3, dead=4, expired=100, now=5).total == 10


def test_priorities_sort_high_first() -> None:
    assert sorted([Priority.LOW, Priority.HIGH, Priority.NORMAL]) == [Priority.HIGH, Priority.NORMAL, Priority.LOW]


@pytest.mark.parametrize("verb", TRANSITIONS)
def test_every_row_of_the_table_is_complete(verb: str) -> None:
    places = ["leased"] if verb == "lease runs out" else ["absent", "dead", "leased", "waiting"]

    assert sorted(TRANSITIONS[verb]) == places


def test_every_outcome_is_a_place_a_change_or_an_error_code() -> None:
    outcomes = {outcome for row in TRANSITIONS.values() for outcome in row.values()}
    changes = {"created", "kept", "replaced", "removed", "moved", "waits", "dies", "waits or dies", "leased"}

    assert {code for code in outcomes - changes if code in BY_CODE} == {
        "job_exists",
        "job_running",
        "job_dead",
        "lease_lost",
    }
    assert outcomes - changes - set(BY_CODE) == {"not found", "gone"}
