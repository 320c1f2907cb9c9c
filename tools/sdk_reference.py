"""The reference of the SDK and of its errors as Markdown, written from signatures and docstrings.

`python tools/sdk_reference.py` renews the marked parts of docs/sdk.md and docs/errors.md, and `make format` runs it.
With --check it only says whether they differ.
"""

import ast
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

from cli_reference import LINE, renew

import duetime
from duetime.cli.program import exit_code
from duetime.model.errors import DuetimeError

DOCS = Path("docs")
SIGNATURE_LINE = 88

SECTIONS: dict[str, tuple[str, ...]] = {
    "Connecting": ("client.connect", "client.connect_async", "client.connections.Connections"),
    "Client": ("client.client.Client",),
    "Queue": ("client.client.QueueClient", "client.client.DeadLetters"),
    "Leased job": ("client.client.LeasedJob",),
    "Schedules and topics": ("client.schedules.Schedules", "client.topics.Topics"),
    "Collections": (
        "client.collections.Collection",
        "client.collections.DelayedQueue",
        "client.collections.BlockingQueue",
        "client.collections.Taken",
        "client.reliable_queue.ReliableQueue",
        "client.reliable_queue.QueueSettings",
        "client.reliable_queue.MessageOptions",
        "client.reliable_queue.ReliableFanout",
    ),
    "In your own transaction": ("client.push_in.push_in", "client.push_in.push_in_async"),
    "Tasks": (
        "worker.app.App",
        "worker.task.Task",
        "worker.handle.TaskHandle",
        "worker.chains.chain",
        "worker.groups.group",
        "worker.batches.TaskBatch",
        "worker.batches.BatchStatus",
        "worker.current_job.current_job",
        "worker.current_job.CurrentJob",
        "worker.current_job.JobLogHandler",
        "worker.events.TaskEvent",
        "worker.runs.Retry",
        "worker.runs.Postpone",
        "worker.runs.Fail",
        "worker.runs.Cancel",
        "worker.runs.TimedOut",
    ),
    "Testing": ("testing.in_memory", "testing.inline", "testing.Box", "testing.PushedTask", "testing.Ran"),
    "Options": (
        "client.job_building.JobFields",
        "client.job_building.PushFields",
        "client.push_in.PushInOptions",
        "worker.app.TaskFields",
        "worker.task.CallFields",
    ),
    "Data": (
        "model.job.State",
        "model.job.Priority",
        "model.job.IfExists",
        "model.job.Event",
        "model.job.NewJob",
        "model.job.Lease",
        "model.job.Delivery",
        "model.job.Job",
        "model.job.Moved",
        "model.job.Counts",
        "client.calls.QueueStatus",
        "stores.base.QueueRules",
        "stores.base.RulesChange",
        "stores.finishes.Finish",
        "stores.finishes.Finished",
        "stores.finishes.Join",
        "stores.finishes.KeptResult",
    ),
}

NOT_SHOWN = {
    *("send", "send_async", "mark_settled", "find_task", "make_id", "forked", "prepare", "return_type", "hash_key"),
    *("all_middleware", "app", "place", "cancel_work", "reschedule_work", "may_follow", "keeps_result", "emit"),
}
"""Members that the SDK's own modules use."""


def write_reference() -> str:
    return "\n".join(line for title in SECTIONS for line in _section(title))


def renew_pages() -> dict[Path, str]:
    """The text of each page as it should be."""
    reference, errors = DOCS / "sdk.md", DOCS / "errors.md"
    return {
        reference: renew(reference.read_text(), "reference", write_reference()),
        errors: renew(errors.read_text(), "errors", "\n".join(_errors())),
    }


def _items(title: str) -> Iterator[tuple[str, Any]]:
    """What a section lists, with the name under which programs import it; of the others the bare name."""
    for path in SECTIONS[title]:
        module, _, name = f"duetime.{path}".rpartition(".")
        package = f"{module}." if module == "duetime.testing" else "duetime." if name in duetime.__all__ else ""
        yield package + name, getattr(import_module(module), name)


def _section(title: str) -> Iterator[str]:
    yield f"## {title}\n"
    for name, item in _items(title):
        yield f"### {name}\n"
        yield from _class(item, is_public="." in name) if inspect.isclass(item) else _function(item, item.__name__)


def _class(cls: type, *, is_public: bool) -> Iterator[str]:
    yield from _text(cls)
    bases = [base for base in cls.__mro__[1:] if base in LISTED]
    if bases:
        yield f"Has everything that `{bases[0].__name__}` has.\n"
    fields = list(_fields(cls))
    if fields:
        yield from ("```py", *fields, "```\n")
    elif is_public and "__init__" in vars(cls):
        yield from ("```py", _signature(vars(cls)["__init__"], cls.__name__).removesuffix(" -> None"), "```\n")
    inherited = {name for base in bases for name, _ in _members(base)}
    members = [] if issubclass(cls, Enum) else [one for one in _members(cls) if one[0] not in inherited]
    properties = [(name, member.fget) for name, member in members if isinstance(member, property) and member.fget]
    for name, getter in properties:
        text = f": {getter.__doc__}" if getter.__doc__ else ""
        yield _filled(f"- `{name}: {_signature(getter, name).partition(' -> ')[2]}`{text}", "  ")
    if properties:
        yield ""
    for name, member in members:
        if not isinstance(member, property):
            yield f"#### {cls.__name__}.{name}\n"
            yield from _function(member, name)


def _members(cls: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties, in the order of the source, with those of Duetime's own base classes."""
    owners = [one for one in reversed(cls.__mro__) if one.__module__.startswith("duetime.")]
    for name in dict.fromkeys(name for owner in owners for name in vars(owner) if not name.startswith("_")):
        found = inspect.getattr_static(cls, name)
        plain = found.__func__ if isinstance(found, staticmethod | classmethod) else found
        has_blocking = name.endswith("_async") and hasattr(cls, name.removesuffix("_async"))  # the page's head says so
        if (inspect.isfunction(plain) or isinstance(plain, property)) and name not in NOT_SHOWN and not has_blocking:
            yield name, plain


def _function(function: Callable[..., Any], name: str) -> Iterator[str]:
    yield from ("```py", _signature(inspect.unwrap(function), name), "```\n")
    yield from _text(function)


def _text(item: Any) -> Iterator[str]:
    """The docstring: paragraphs are filled, indented blocks are code, and lists stay as they are."""
    text = (vars(item).get("__doc__") if inspect.isclass(item) else item.__doc__) or ""
    if text.startswith(f"{item.__name__}("):  # a dataclass without a docstring
        return
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if paragraph.startswith("    "):
            yield f"```py\n{textwrap.dedent(paragraph)}\n```\n"
        elif paragraph.startswith("- "):
            yield f"{paragraph}\n"
        elif paragraph:
            yield f"{_filled(paragraph)}\n"


def _filled(text: str, indent: str = "") -> str:
    words = " ".join(text.split())
    return textwrap.fill(words, LINE, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)


def _fields(cls: type) -> Iterator[str]:
    """The fields of data with their types and defaults, or the members of an enum."""
    source = textwrap.dedent(inspect.getsource(cls))
    for node in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
        written = ast.get_source_segment(source, node) or ""
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            if not node.target.id.startswith("_") and "ClassVar" not in written:
                yield " ".join(written.split())
        elif isinstance(node, ast.Assign) and issubclass(cls, Enum):
            yield written


def _signature(function: Callable[..., Any], name: str) -> str:
    """As it is written, without `self`; a long one has a line for each parameter."""
    source = textwrap.dedent(inspect.getsource(function))
    node = ast.parse(source).body[0]
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    returns = (node.returns and ast.get_source_segment(source, node.returns)) or "None"
    parameters = [one for one in _parameters(node.args, source, function.__globals__) if one not in ("self", "cls")]
    start = f"{'await ' if isinstance(node, ast.AsyncFunctionDef) else ''}{name}"
    line = f"{start}({', '.join(parameters)}) -> {returns.strip(chr(34))}"
    if len(line) <= SIGNATURE_LINE:
        return line
    return "\n".join([f"{start}(", *(f"    {one}," for one in parameters), line[line.rindex(") -> ") :]])


def _parameters(arguments: ast.arguments, source: str, names: dict[str, Any]) -> Iterator[str]:
    def written(one: ast.arg, default: ast.expr | None = None, stars: str = "") -> str:
        annotation = f": {ast.get_source_segment(source, one.annotation)}" if one.annotation else ""
        value = ast.get_source_segment(source, default) if default else None
        if value and isinstance(names.get(value), str | int | float):  # a constant: its value says more
            value = json.dumps(names[value])
        equals = " = " if annotation else "="
        return f"{stars}{one.arg}{annotation}{equals + value if value else ''}"

    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    for number, (one, default) in enumerate(zip(positional, defaults, strict=True), 1):
        yield written(one, default)
        if number == len(arguments.posonlyargs) and number > 1:
            yield "/"
    if arguments.vararg:
        yield written(arguments.vararg, stars="*")
    elif arguments.kwonlyargs:
        yield "*"
    for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield written(one, default)
    if arguments.kwarg:
        yield written(arguments.kwarg, stars="**")


def _errors() -> Iterator[str]:
    yield "| class | code | HTTP | exit | meaning |\n|---|---|---|---|---|"
    yield from _rows(DuetimeError, 0)


def _rows(error: type[DuetimeError], depth: int) -> Iterator[str]:
    if error.__module__ == DuetimeError.__module__:
        meaning = " ".join((error.__doc__ or "").split("\n\n")[0].split()).replace("|", "\\|")
        name = f"{'↳ ' * depth}`{error.__name__}`"
        yield f"| {name} | `{error.code}` | {error.status} | {exit_code(error())} | {meaning} |"
        for child in error.__subclasses__():
            yield from _rows(child, depth + 1)


LISTED = {item for title in SECTIONS for _, item in _items(title)}


if __name__ == "__main__":
    for page, text in renew_pages().items():
        if "--check" in sys.argv and text != page.read_text():
            sys.exit(f"{page} is out of date: run `make format`")
        page.write_text(text)
