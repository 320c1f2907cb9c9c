"""The output of the commands: text for people, JSON for programs.

With `--json` every line of standard output is one JSON document with the same keys every time; nothing else is
printed there. Text for people may change between versions. Whatever comes out of a job is shown without its control
characters, so that a body cannot steer the terminal that displays it.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import asdict

from duetime.model.clock import rfc3339
from duetime.model.errors import DuetimeError, InvalidRequest
from duetime.model.humanise import span
from duetime.model.job import Delivery, Event, Job, Moved, State
from duetime.model.names import Queue
from duetime.wire import convert
from duetime.wire.payload import describe

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

PIPE_WIDTH = 1_000
"""A pipe has no width; a table that is cut there would lose data."""
PREVIEW = 48

EVENT_WORDS = {
    Event.ACKED: "done",
    Event.CANCELLED: "deleted",
    Event.DEAD: "failed",
    Event.LEASE_EXPIRED: "lease expired",
    Event.GIVEN_BACK: "given back",
    Event.RESPAWNED: "retried",
}
"""Events whose name differs from the word that people read; JSON has the name."""


class StateWord(StrEnum):
    """The states of a job in the words that people read and type; JSON has the words of the API."""

    RUNNING = "running"
    READY = "ready"
    DELAYED = "delayed"
    FAILED = "failed"

    @classmethod
    def _missing_(cls, value: object) -> "StateWord | None":
        """Options also accept the words of the API, as `--json` prints them."""
        return {State.LEASED.value: cls.RUNNING, State.DEAD.value: cls.FAILED}.get(str(value))

    @property
    def state(self) -> State:
        return {StateWord.RUNNING: State.LEASED, StateWord.FAILED: State.DEAD}.get(self) or State(self)

    @classmethod
    def of(cls, state: State) -> "StateWord":
        return next(word for word in cls if word.state is state)


class Answer:
    """Prints the results of a command."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self._console: Console | None = None

    @property
    def console(self) -> "Console":
        """Made when it is first used: a command that prints one line does not wait for the import."""
        if self._console is None:
            from rich.console import Console  # noqa: PLC0415

            width = None if sys.stdout.isatty() else PIPE_WIDTH
            self._console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True, width=width)
        return self._console

    def document(self, value: Mapping[str, Any]) -> None:
        sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
        sys.stdout.flush()

    def show(self, value: Mapping[str, Any], text: "str | Text") -> None:
        """Prints one thing, as JSON or text."""
        if self.as_json:
            self.document(value)
        elif isinstance(text, str):
            sys.stdout.write(text + "\n")
            sys.stdout.flush()
        else:
            self.console.print(text)

    def table(
        self,
        rows: Iterable[Mapping[str, Any]],
        columns: "Mapping[str, Sequence[str | Text]]",
        *,
        nothing: str = "",
        overflow: Literal["fold", "ellipsis"] = "ellipsis",
    ) -> None:
        """A list of things: one document each, or one table. Columns that end in a blank are set to the right.
        `nothing` is printed instead of an empty table.
        """
        if self.as_json:
            for row in rows:
                self.document(row)
            return
        if nothing and not any(columns.values()):
            note(nothing)
            return
        from rich.table import Table  # noqa: PLC0415

        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in columns:
            justify = "right" if name.endswith(" ") else "left"
            table.add_column(name.strip(), justify=justify, no_wrap=overflow == "ellipsis", overflow=overflow)
        for cells in zip(*columns.values(), strict=True):
            table.add_row(*cells)
        self.console.print(table)

    def note(self, text: str) -> None:
        """Prints a remark for people: on standard error, and not with `--json`."""
        if not self.as_json:
            note(text)

    def confirm(self, question: str) -> None:
        """Asks before something is lost. Without a terminal `--yes` is needed, because nobody can answer."""
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise InvalidRequest(f"{question} Add --yes to do it without a terminal.")
        sys.stderr.write(f"{question} [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise Declined("Nothing was changed.")


class Declined(DuetimeError):
    """The question was answered with no."""

    code = "declined"
    status = 409


def note(text: str) -> None:
    """Prints a warning on standard error, also with `--json`."""
    sys.stderr.write(text + "\n")


# --- documents for --json


def queue_document(queue: Queue) -> dict[str, Any]:
    return {"namespace": queue.namespace, "queue": queue.name}


def moved_document(queue: Queue, moved: Moved) -> dict[str, Any]:
    shown = asdict(moved)
    del shown["was"]
    return {**queue_document(queue), **shown}


def job_document(job: Job) -> dict[str, Any]:
    return {**asdict(convert.job_out(job)), **body_document(job.body)}


def delivery_document(delivery: Delivery, lease: str) -> dict[str, Any]:
    shown = asdict(convert.delivery_out(delivery))
    fence = asdict(shown.pop("lease"))
    place = queue_document(delivery.lease.queue)
    return {"lease": lease, **place, **fence, **shown, **body_document(delivery.body)}


def body_document(body: bytes) -> dict[str, Raw | str | None]:
    """As over HTTP: `body` for JSON and text, else `body_b64`; the other is null."""
    value, b64 = convert.write_body(body)
    return {"body": None if value is UNSET else value, "body_b64": None if b64 is UNSET else b64}


def error_document(error: DuetimeError) -> dict[str, Any]:
    return {"error": {"code": error.code, "message": error.message, "fields": error.fields}}


# --- texts for people


def safe(text: str) -> str:
    """The text without control characters; line ends and tabs stay."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text)


def body_text(body: bytes) -> str:
    try:
        return safe(body.decode())
    except UnicodeDecodeError:
        return f"<{len(body)} bytes that are not text; --json has them in base64>"


def preview(body: bytes) -> str:
    """A task with its arguments, any other body as its text."""
    text = safe(describe(body) or "") or " ".join(body_text(body).split())
    return text if len(text) <= PREVIEW else text[: PREVIEW - 1] + "…"


def relative(at_ms: int, now_ms: int) -> str:
    if at_ms == 0:
        return "-"
    return f"in {span(at_ms - now_ms)}" if at_ms > now_ms else f"{span(now_ms - at_ms)} ago"


def moment(at_ms: int, now_ms: int) -> str:
    return f"{rfc3339(at_ms)} ({relative(at_ms, now_ms)})"


def tries_text(used: int, tries: int) -> str:
    return f"{used} of {tries}" if tries else f"{used} of unlimited"
