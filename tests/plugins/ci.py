"""The one difference between a laptop and CI: what is missing is skipped here and fails there."""

import os
from typing import NoReturn

import pytest


def in_ci() -> bool:
    return os.environ.get("CI") == "true"


def missing_service(reason: str) -> NoReturn:
    """End the test because a program it needs is not installed: a skip on a laptop, a failure in CI."""
    if in_ci():
        pytest.fail(f"{reason} (tools/services installs it)", pytrace=False)
    pytest.skip(reason)
