"""The error tree: codes, texts, equality, and what survives pickling."""

import pickle

import pytest

from duetime.model import errors
from duetime.model.errors import (
    BY_CODE,
    DuetimeError,
    JobNotFound,
    LeaseLost,
    NotFound,
    StoreUnavailable,
)

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, DuetimeError)]


def test_every_error_has_its_own_code() -> None:
    assert len({kind.code for kind in KINDS}) == len(KINDS)
    assert {kind.code: kind for kind in KINDS} == BY_CODE


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_first_line_of_the_docstring_is_the_default_text(kind: type[DuetimeError]) -> None:
    error = kind()

    assert error.message == str(error) == (kind.__doc__ or "").split("\n")[0].rstrip(".")
    assert error.message


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_survives_pickling(kind: type[DuetimeError]) -> None:
    error = kind("what went wrong", id="a", limit=3)

    copy = pickle.loads(pickle.dumps(error))

    assert (type(copy), copy.message, copy.fields) == (kind, "what went wrong", {"id": "a", "limit": 3})


def test_errors_are_values() -> None:
    assert LeaseLost("gone") == LeaseLost("gone")
    assert hash(LeaseLost("gone")) == hash(LeaseLost("gone"))
    assert LeaseLost("gone") != LeaseLost("other")
    assert JobNotFound("x") != NotFound("x")
    assert LeaseLost() != "lease_lost"


def test_a_store_that_was_lost_in_between_is_reported() -> None:
    assert StoreUnavailable("no answer", unknown=True).outcome_unknown
    assert not StoreUnavailable("no connection").outcome_unknown
