"""The sync and the async SDK are one: same methods, same parameters, same documentation."""

import inspect
import subprocess
import sys

import pytest

import duetime
from duetime.client import async_client, client, leased_job

TWINS = [
    (client.Client, async_client.AsyncClient),
    (client.QueueClient, async_client.AsyncQueueClient),
    (client.DeadLetters, async_client.AsyncDeadLetters),
    (leased_job.LeasedJob, leased_job.AsyncLeasedJob),
]


def public(kind: type) -> dict[str, inspect.Signature]:
    methods = inspect.getmembers(kind, inspect.isfunction)
    return {name: inspect.signature(method) for name, method in methods if not name.startswith("_")}


def parameters(signature: inspect.Signature) -> list[tuple[str, object, object, object]]:
    return [(p.name, p.kind, p.default, str(p.annotation)) for p in signature.parameters.values()]


@pytest.mark.parametrize(("sync", "twin"), TWINS)
def test_methods_and_parameters_are_the_same(sync: type, twin: type) -> None:
    assert {name: parameters(signature) for name, signature in public(sync).items()} == {
        name: parameters(signature) for name, signature in public(twin).items()
    }


@pytest.mark.parametrize(("sync", "twin"), TWINS)
def test_answers_and_documentation_are_the_same(sync: type, twin: type) -> None:
    for name, signature in public(sync).items():
        other = getattr(twin, name)
        assert other.__doc__ == getattr(sync, name).__doc__
        if name == "take":  # what it gives can be awaited, and is a context manager that awaits
            assert not inspect.iscoroutinefunction(other)
            continue
        assert str(inspect.signature(other).return_annotation).replace("Async", "") == str(signature.return_annotation)
        assert inspect.iscoroutinefunction(other) is (name not in ("queue", "json", "text", "mark_settled"))


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
