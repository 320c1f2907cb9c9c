"""The garbage collector leaves the collected tests alone: walking hundreds of thousands of living objects again and
again took half the time of the collection, and goes on taking time in every process afterwards.
"""

import gc
from collections.abc import Iterator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
