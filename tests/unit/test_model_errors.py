"""The error tree: codes, texts, equality, and what survives pickling."""

import pickle
import re

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


def drawn_tree() -> dict[str, tuple[str, int]]:
    """Class -> (its parent, its status), as the module's docstring draws them; a status is inherited."""
    drawn: dict[str, tuple[str, int]] = {}
    path: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^( {4}[│ ├└─]*)([A-Z]\w+)(?:\s+(\d{3}))?", line)
        if not match:
            continue
        depth, name = len(match[1]), match[2]
        path = [entry for entry in path if entry[0] < depth]
        parent = path[-1][1] if path else ""
        status = int(match[3]) if match[3] else (drawn[parent][1] if parent else 500)
        drawn[name] = (parent, status)
        path.append((depth, name))
    return drawn


def test_the_drawn_tree_is_the_real_one() -> None:
    real = {
        kind.__name__: (kind.__bases__[0].__name__ if kind is not DuetimeError else "", kind.status) for kind in KINDS
    }

    assert drawn_tree() == real


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
