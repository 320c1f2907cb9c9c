"""Checks arguments before a call is made, so that a store and a server refuse the same mistake with the same error."""

import difflib
import sys
from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from typing import Any, TypeVar

from duetime.model.clock import instant_ms
from duetime.model.errors import InvalidRequest
from duetime.model.job import IfExists, NewJob, Priority, State, check_incarnation, check_job
from duetime.model.names import check_id

Word = TypeVar("Word", bound=Enum)

_PRIORITIES = {priority.name.lower(): priority for priority in Priority}


def check_options(given: Iterable[str], known: Collection[str]) -> None:
    """Raises TypeError with the nearest name, as Python does for a function without such a parameter."""
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(sorted(known))}"
            raise TypeError(f"there is no option {name!r}{hint}")


def items(what: str, values: Any) -> Iterable[Any]:
    """Raises InvalidRequest for what is not a list, and for text, whose characters would be taken for the items."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise InvalidRequest(f"{what} must be a list, got {values!r:.40}; one item is a list of one")
    return values  # pyright: ignore[reportUnknownVariableType]


def instance(what: str, value: Any, kind: type) -> None:
    if not isinstance(value, kind):
        raise InvalidRequest(f"{what} must be a {kind.__name__}, got {value!r:.40}")


def new_job(job: Any) -> NewJob:
    """Returns the job. Raises the errors of a store for what cannot be sent to a server. Its body may have any size,
    because the server knows the limit.
    """
    instance("job", job, NewJob)
    attributes(job.attributes)
    check_incarnation(job.born, job.attempt)
    if isinstance(job.due_at, int):
        instant_ms(job.due_at)
    check_job(job, max_body=sys.maxsize)
    return job


def check_callable(what: str, value: object) -> None:
    if not callable(value):
        raise InvalidRequest(f"{what} must be a function or another callable, got {value!r:.60}")


def job_ids(values: Any) -> list[str]:
    return [check_id(one) for one in items("ids", values)]


def error_text(error: Any) -> str:
    """What a job failed with. Characters that UTF-8 cannot encode are replaced, so that no job fails to be released
    because its error cannot be sent.
    """
    if not isinstance(error, str):
        raise InvalidRequest(f"error must be text, got {error!r:.40}")
    return error.encode(errors="replace").decode()


def priority(value: Any) -> Priority:
    if isinstance(value, str) and value in _PRIORITIES:
        return _PRIORITIES[value]
    return _word(Priority, value, "priority must be high, normal or low")


def state(value: Any) -> State:
    return _word(State, value, "state must be delayed, ready, leased or dead")


def if_exists(value: Any) -> IfExists:
    return _word(IfExists, value, "if_exists must be keep, replace or error")


def _word(kind: type[Word], value: Any, rule: str) -> Word:
    if isinstance(value, kind):
        return value
    try:
        return kind(value)
    except ValueError:
        raise InvalidRequest(f"{rule}, got {value!r}") from None


def utf8(what: str, text: str) -> bytes:
    """A text in the one encoding that every store and protocol can keep; half of a surrogate pair has none."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{what} cannot be written as UTF-8: {error.reason} at {error.start}") from None


def attributes(value: Any) -> Mapping[str, str]:
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"attributes must be a mapping of texts, got {value!r}")
    for key, text in value.items():  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(key, str) or not isinstance(text, str):
            raise InvalidRequest(f"attribute name and value must be texts, got {key!r}: {text!r}")
        utf8("an attribute", key + text)
    return value  # pyright: ignore[reportUnknownVariableType]
