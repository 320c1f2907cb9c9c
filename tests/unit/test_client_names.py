"""The public names of the SDK."""

import subprocess
import sys

import pytest

import duetime


def test_everything_public_is_there_and_documented() -> None:
    for name in duetime.__all__:
        thing = getattr(duetime, name)
        assert name == "__version__" or thing.__doc__, name


def test_a_name_is_not_its_module_whatever_was_used_before() -> None:
    used = "import duetime; duetime.App; print(callable(duetime.push_in))"
    assert subprocess.run([sys.executable, "-c", used], capture_output=True, text=True, check=True).stdout == "True\n"


def test_import_takes_in_nothing_that_is_not_used() -> None:
    """Each name is imported at its first use; all of them are there."""
    used = "import sys, duetime; print(len([name for name in sys.modules if name.startswith('duetime.')]))"
    assert subprocess.run([sys.executable, "-c", used], capture_output=True, text=True, check=True).stdout == "0\n"
    heavy = "print([name for name in ('httpx', 'rich') if name in sys.modules])"
    embedded = f"import sys, duetime; duetime.connect('memory:').close(); {heavy}"
    assert subprocess.run([sys.executable, "-c", embedded], capture_output=True, text=True, check=True).stdout == "[]\n"
    assert [name for name in duetime.__all__ if not hasattr(duetime, name)] == []
    with pytest.raises(AttributeError, match="dealy"):
        duetime.dealy  # noqa: B018
