"""What goes over the wire comes back as it was: a remote engine answers what an embedded one does."""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetime.model.clock import MAX_DURATION, MAX_INSTANT
from duetime.model.errors import BY_CODE, DuetimeError
from duetime.model.job import MAX_TRIES, Counts, Delivery, Event, Job, Lease, Moved, NewJob, Priority, State
from duetime.model.names import Queue
from duetime.stores.base import Page
from duetime.wire import convert

T = TypeVar("T")

QUEUE = Queue("shop", "mail")

texts = st.text(st.characters(codec="utf-8"))
ids = st.text(st.characters(codec="utf-8"), min_size=1, max_size=128).filter(str.isprintable)
bodies = (
    st.binary()
    | texts.map(str.encode)
    | st.sampled_from(
        [b"null", b'"quoted"', b'{"a": 1}', b" []", b"[] ", b'["\xc3"]', b"[1e999]", b"[" * 500 + b"]" * 500, b"\xff"]
    )
)
instants = st.integers(0, MAX_INSTANT)
numbers = st.integers(0, 2**32 - 1)
attributes = st.dictionaries(texts, texts, max_size=3)
priorities = st.sampled_from(Priority)
tries = st.integers(0, MAX_TRIES)
leases = st.builds(Lease, st.just(QUEUE), ids, instants, numbers)
moves = st.builds(Moved, st.sampled_from(Event), ids, instants, numbers, instants, texts, instants)
new_jobs = st.builds(
    NewJob,
    id=ids,
    body=bodies,
    delay_ms=st.integers(0, MAX_DURATION),
    ttl_ms=st.integers(0, MAX_DURATION),
    tries=tries,
    priority=priorities,
    attributes=attributes,
    born=instants,
    attempt=numbers,
) | st.builds(NewJob, id=ids, body=bodies, due_at=instants)
deliveries = st.builds(
    Delivery,
    lease=leases,
    body=bodies,
    due_at=instants,
    lease_until=instants,
    priority=priorities,
    tries=tries,
    used=tries,
    expires_at=instants,
    attributes=attributes,
    error=texts,
)
jobs = st.builds(
    Job,
    queue=st.just(QUEUE),
    id=ids,
    born=instants,
    state=st.sampled_from(State),
    body=bodies,
    due_at=instants,
    priority=priorities,
    tries=tries,
    used=tries,
    attempt=numbers,
    expires_at=instants,
    lease_until=instants,
    dead_at=instants,
    reason=texts,
    error=texts,
    attributes=attributes,
)


def sent(message: T) -> T:
    """The message as the other side reads it."""
    kind: type[T] = type(message)
    return msgspec.json.decode(msgspec.json.encode(message), type=kind)


def no_id() -> str:
    raise AssertionError("the id came along")


@given(new_jobs)
def test_a_new_job(job: NewJob) -> None:
    assert convert.new_job(sent(convert.job_in(job)), no_id) == job


@given(deliveries)
def test_a_delivery(delivery: Delivery) -> None:
    assert convert.delivery("shop", sent(convert.delivery_out(delivery))) == delivery


@given(jobs)
def test_a_job(job: Job) -> None:
    assert convert.job(sent(convert.job_out(job))) == job


@given(st.lists(jobs, max_size=2), st.none() | texts)
def test_a_page(found: list[Job], cursor: str | None) -> None:
    assert convert.page(sent(convert.page_out(Page(found, cursor)))) == Page(found, cursor)


@given(moves | st.none())
def test_a_result(moved: Moved | None) -> None:
    assert convert.result(sent(convert.result_out(moved))) == moved


@given(st.builds(Counts, instants, instants, instants, instants, instants, instants))
def test_counts(counts: Counts) -> None:
    assert convert.counts(sent(convert.counts_out(counts))) == counts


@given(leases)
def test_a_lease(lease: Lease) -> None:
    assert convert.lease(QUEUE, sent(convert.lease_ref(lease))) == lease


@pytest.mark.parametrize("code", BY_CODE)
def test_an_error_is_raised_as_it_was(code: str) -> None:
    error = BY_CODE[code]("what went wrong", id="a", limit=5, unknown=True)

    again = convert.result(sent(convert.result_out(error)))

    assert type(again) is type(error)
    assert isinstance(again, DuetimeError)
    assert (again.message, again.fields) == (error.message, error.fields)


@pytest.mark.parametrize("make", [lambda kind: kind(), lambda kind: kind("x" * 10)])
def test_an_error_keeps_its_own_words(make: Callable[[Any], DuetimeError]) -> None:
    for kind in BY_CODE.values():
        error = make(kind)
        assert convert.error(sent(convert.error_out(error))) == error
