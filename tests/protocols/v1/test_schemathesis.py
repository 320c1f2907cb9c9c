"""Requests made up from the OpenAPI document, good and bad ones: no 5xx, and no answer that the document does not know.

The server is a process of its own: in this one, Hypothesis would take its use of chance for a test's.
"""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import load_all_checks
from schemathesis.generation.feedback import FeedbackSources
from schemathesis.pytest._test_builder import build_operation_test

from duetime.model.clock import duration_ms
from duetime.model.errors import InvalidTime
from duetime.protocols.v1 import openapi
from tests.plugins.processes import guard, release
from tests.plugins.scale import read_scale

# Two checks do not fit. A schema cannot say what is printable, which edges rise, or when a ttl is too short, so some
# requests that it allows are refused with 400. And 504 is the answer of a call that nobody answered, not a failure.
positive_data_acceptance = schemathesis.checks.positive_data_acceptance
not_a_server_error = schemathesis.checks.not_a_server_error

EXAMPLES = 10
LONGEST_WAIT = "20ms"
TOKEN = "a-token-for-everything"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.protocols.v1.server", TOKEN, "memory:"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    guard(process.pid)
    assert process.stdout
    yield process.stdout.readline().strip()
    _, errors = process.communicate()
    release(process.pid)
    assert errors == "", "the server logged an error"
    assert process.returncode == 0


def shorten(case: schemathesis.Case) -> None:
    """A made-up long poll may be an hour long: shorten it, and leave alone what is refused anyway."""
    if operation_id(case) == "call":
        case.query = {"wait": LONGEST_WAIT, **(case.query or {})}
    for part in (case.body, case.query):
        if isinstance(part, dict) and "wait" in part and _is_long(part["wait"]):
            part["wait"] = LONGEST_WAIT


def operation_id(case: schemathesis.Case) -> str:
    return str(case.operation.definition.raw["operationId"])


def _is_long(wait: Any) -> bool:
    try:
        return duration_ms(wait) > duration_ms(LONGEST_WAIT)
    except InvalidTime:
        return False


schema = schemathesis.openapi.from_dict(openapi.build())
OPERATIONS = [f"{method.upper()} {path}" for path, methods in openapi.build()["paths"].items() for method in methods]


@settings(max_examples=EXAMPLES * read_scale(), deadline=None, suppress_health_check=list(HealthCheck))
def send(case: schemathesis.Case, url: str) -> None:
    shorten(case)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    response = case.call(base_url=url, headers=headers)
    excluded = [positive_data_acceptance]
    if operation_id(case) == "call" and response.status_code == 504:
        excluded.append(not_a_server_error)
    case.validate_response(response, headers=headers, excluded_checks=excluded)


@pytest.mark.parametrize("label", OPERATIONS)
def test_nothing_surprises_the_server(label: str, url: str) -> None:
    """`@schema.parametrize()` would make up all requests when tests are collected, in every process: that takes three
    times as long as collecting all other tests."""
    load_all_checks()
    method, path = label.split(" ")
    build_operation_test(
        config=schema.config,
        operation=schema[path][method],
        test_func=send,
        given_kwargs={},
        feedback=FeedbackSources(),
    )(url=url)
