"""The blocking client is generated from the async one."""

import pytest

from tools.blocking_client import CLIENT, FILES, blocking


@pytest.mark.parametrize(("source", "target"), FILES.items())
def test_the_generated_file_is_current(source: str, target: str) -> None:
    assert (CLIENT / target).read_text() == blocking((CLIENT / source).read_text(), source)


def test_a_line_without_a_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="no rule for 'async with lock:'"):
        blocking("async with lock:\n    pass\n", "async_client.py")
