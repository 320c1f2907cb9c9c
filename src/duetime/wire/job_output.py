"""The last lines that a running task logged, shown with its job.

A worker keeps them in counters of the registry with a short life, whose names hold the text: `output/<job>/<number of
the writing>/<part>/<parts>/<text>`. It writes all of them again when they have changed, and now and then before their
life is over, so they are gone soon after the job has ended. They are in no journal.
"""

import hashlib
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Annotated

from msgspec import Meta, Struct

from duetime.model.logs import hide_secrets
from duetime.model.names import Queue
from duetime.stores.registry import Registry
from duetime.wire.payload import counter_name

MAX_OUTPUT = 2_000
"""Bytes of the lines that are kept, as UTF-8."""
MAX_LINE = 500
"""Characters of one line."""
PART = 500
"""Characters in the name of one counter."""
MOST_PARTS = MAX_OUTPUT // PART
LIFE_MS = 60_000


class OutputOut(Struct):
    """The last lines that the task of a running job logged, the oldest first."""

    lines: Annotated[list[str], Meta(max_length=MAX_OUTPUT)]


def clean_lines(text: str) -> list[str]:
    """The last lines of a text, cut where they are long, with secrets masked as in a log."""
    lines = text.splitlines()[-MAX_OUTPUT // 2 :]
    hidden = [hide_secrets(line, MAX_LINE) for line in lines]
    return ["".join(char if char.isprintable() else " " for char in line) for line in hidden]


class LastLines:
    """As many of the last lines as MAX_OUTPUT allows. The cost of adding a line does not depend on their number,
    because a task may log faster than its worker reads.
    """

    def __init__(self, lines: Iterable[str] = ()) -> None:
        self._lines = deque[str]()
        self._bytes = 0
        self.add(lines)

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._lines.append(line)
            self._bytes += len(line.encode()) + 1
            while self._bytes > MAX_OUTPUT:
                self._bytes -= len(self._lines.popleft().encode()) + 1

    def read(self) -> list[str]:
        return list(self._lines)


def output_names(queue: Queue, job_id: str, number: int, lines: Sequence[str]) -> list[str]:
    """The counters of one writing. `number` must be higher than that of the previous writing."""
    text = "\n".join(lines)
    parts = [text[at : at + PART] for at in range(0, len(text), PART)]
    prefix = f"{_prefix(queue, job_id)}{number}"
    return [f"{prefix}/{part}/{len(parts)}/{text}" for part, text in enumerate(parts)]


async def read_output(registry: Registry, queue: Queue, job_id: str) -> OutputOut:
    """The lines of the last complete writing. Clients with a token may add counters, so any other name is skipped."""
    prefix = counter_name(queue.namespace, _prefix(queue, job_id))
    writings: dict[int, dict[int, str]] = {}
    sizes: dict[int, int] = {}
    for name in await registry.counters(prefix):
        fields = name.removeprefix(prefix).split("/", 3)
        if len(fields) == 4 and all(field.isdecimal() and len(field) < 16 for field in fields[:3]):
            number, part, size = map(int, fields[:3])
            if size <= MOST_PARTS:
                writings.setdefault(number, {})[part] = fields[3]
                sizes[number] = size
    whole = [number for number, parts in writings.items() if set(parts) == set(range(sizes[number]))]
    if not whole:
        return OutputOut([])
    parts = writings[max(whole)]
    return OutputOut(LastLines("".join(parts[part] for part in sorted(parts)).split("\n")).read())


def _prefix(queue: Queue, job_id: str) -> str:
    digest = hashlib.blake2b(f"{queue.name}/{job_id}".encode(), digest_size=12, person=b"output").hexdigest()
    return f"output/{digest}/"
