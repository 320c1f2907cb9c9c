"""How large the heavy tests are: DUETIME_TEST_SCALE, 1 by default, 10 in `make test-full`.

A test multiplies its own small number by `scale`; the property tests run that many times their usual examples.
"""

import os

import hypothesis
import pytest

EXAMPLES_AT_SCALE_1 = 50


def read_scale() -> int:
    text = os.environ.get("DUETIME_TEST_SCALE", "1")
    if not text.isdecimal() or int(text) < 1:
        raise pytest.UsageError(f"DUETIME_TEST_SCALE is a whole number from 1 on, not {text!r}")
    return int(text)


@pytest.fixture(scope="session")
def scale() -> int:
    return read_scale()


def pytest_configure(config: pytest.Config) -> None:
    # No deadline per example: a store that waits for the disk is slow now and then, and that is no bug.
    hypothesis.settings.register_profile(
        "duetime", deadline=None, max_examples=EXAMPLES_AT_SCALE_1 * read_scale(), print_blob=True
    )
    if config.getoption("--hypothesis-profile", None) is None:
        hypothesis.settings.load_profile("duetime")
