"""`push --file`: many jobs from a file of JSON lines.

Lines go out in calls of 500 jobs or 4 MiB. A call whose jobs are all fine costs one step; when one of them is refused
the call is repeated job by job, so that a bad line never takes its neighbours with it. The error of a line is
printed on standard error as soon as it is known; the sums come at the end, on standard output.
"""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import msgspec

from duetime.cli.options import Target
from duetime.cli.output import error_document, queue_document
from duetime.cli.progress import show_progress
from duetime.client import Client, calls
from duetime.client.job_building import JobFields
from duetime.model.clock import SystemClock, duration_ms, instant_ms
from duetime.model.errors import NOT_JSON, DuetimeError, InvalidRequest, StoreUnavailable
from duetime.model.job import (
    DEFAULT_TRIES,
    STEP_BYTES,
    STEP_JOBS,
    Event,
    IfExists,
    Moved,
    NewJob,
    Priority,
    payload_bytes,
)
from duetime.model.names import Queue, check_queue
from duetime.wire import convert
from duetime.wire.messages import JobIn


class LinesRefused(DuetimeError):
    """Some lines were not pushed."""

    code = "lines_refused"
    status = 409


@dataclass
class LoadCounts:
    """Counts the lines by outcome."""

    accepted: int = 0
    kept: int = 0
    replaced: int = 0
    failed: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def pushed(self) -> int:
        return self.accepted + self.kept + self.replaced

    @property
    def seconds(self) -> float:
        return max(time.monotonic() - self.started, 1e-6)

    def count(self, moved: Moved) -> None:
        match moved.event:
            case Event.KEPT:
                self.kept += 1
            case Event.REPLACED:
                self.replaced += 1
            case _:
                self.accepted += 1


@dataclass(frozen=True)
class FileLine:
    number: int
    queue: Queue
    job: NewJob


class Loader:
    """Reads one file into one queue, or each line into the queue that it names."""

    def __init__(
        self, client: Client, queue: Queue | None, name: str, defaults: JobFields, if_exists: IfExists, *, as_json: bool
    ) -> None:
        self.counts = LoadCounts()
        self._client = client
        self._queue = queue
        self._name = name
        self._defaults = defaults
        self._if_exists = if_exists
        self._as_json = as_json
        self._last_line = 0

    def run(self, source: BinaryIO, advance_to: Callable[[int], None]) -> None:
        """Calls `advance_to` with the bytes read so far."""
        for chunk, bytes_read in self._chunks(source):
            if chunk:
                self._send(chunk)
                self._last_line = chunk[-1].number
            advance_to(bytes_read)

    def _chunks(self, source: BinaryIO) -> Iterator[tuple[list[FileLine], int]]:
        """The lines of one call after the other, with the bytes read so far."""
        chunk: list[FileLine] = []
        size = bytes_read = 0
        for number, raw in enumerate(source, 1):
            bytes_read += len(raw)
            line = self._read(number, raw)
            if line is None:
                continue
            more = payload_bytes(line.job)
            is_full = len(chunk) == STEP_JOBS or size + more > STEP_BYTES
            if chunk and (is_full or chunk[0].queue != line.queue):
                yield chunk, bytes_read
                chunk, size = [], 0
            chunk.append(line)
            size += more
        yield chunk, bytes_read

    def _read(self, number: int, raw: bytes) -> FileLine | None:
        if not raw.strip():
            return None
        try:
            queue = self._queue
            if queue is None:
                queue, raw = own_queue(raw, self._client.namespace)
            return FileLine(number, queue, read_line(raw, self._defaults, self._client))
        except DuetimeError as error:
            self._refuse(number, error)
            return None

    def _send(self, chunk: list[FileLine]) -> None:
        queue, jobs = chunk[0].queue, [line.job for line in chunk]
        try:
            answers: list[calls.Result] = list(self._client.send(calls.push(queue, jobs, self._if_exists)).jobs)
        except StoreUnavailable as error:
            raise self._interrupted(error) from error
        except DuetimeError:
            try:
                answers = self._client.send(calls.push_each(queue, jobs, self._if_exists))
            except StoreUnavailable as error:
                raise self._interrupted(error) from error
        for line, answer in zip(chunk, answers, strict=True):
            if isinstance(answer, Moved):
                self.counts.count(answer)
            elif answer is not None:
                self._refuse(line.number, answer)

    def _interrupted(self, error: StoreUnavailable) -> StoreUnavailable:
        done = f"lines up to {self._last_line} of {self._name} are done" if self._last_line else "no line is done"
        return StoreUnavailable(f"{error.message} ({done})", line=self._last_line, **error.fields)

    def _refuse(self, number: int, error: DuetimeError) -> None:
        self.counts.failed += 1
        if self._as_json:
            document = {"file": self._name, "line": number, **error_document(error)}
            text = msgspec.json.encode(document).decode()
        else:
            text = f"{self._name}:{number}: {error.code}: {error.message}"
        sys.stderr.write(text + "\n")


def own_queue(raw: bytes, namespace: str) -> tuple[Queue, bytes]:
    """The queue that a line names, and the line as it would be without that name if it was not listed."""
    try:
        given = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        name = msgspec.json.decode(given["queue"], type=str)
    except KeyError:
        raise InvalidRequest("line must have a queue, or name one for all lines: push QUEUE") from None
    except NOT_JSON as error:
        raise InvalidRequest(f"line must be a job: {error}") from None
    if not _is_listed(given):
        del given["queue"]
    return check_queue(namespace, name), msgspec.json.encode(given)


def read_line(raw: bytes, defaults: JobFields, client: Client) -> NewJob:
    """One line as a job; InvalidRequest says what is wrong with it. A line that `list --json`, `get` or `reserve` wrote
    is a job too: the same id, body, due time, tries and attributes, and as long to live as it had left.
    """
    try:
        given = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        if _is_listed(given):
            given = _listed(given)
            raw = msgspec.json.encode(given)
        written = msgspec.json.decode(raw, type=JobIn)
    except NOT_JSON as error:
        raise InvalidRequest(f"line must be a job: {error}") from None
    if "body" not in given and "body_b64" not in given:
        raise InvalidRequest("line must have a body or body_b64")
    job = convert.new_job(written, client.make_id)
    changes: dict[str, object] = {}
    if not given.keys() & {"delay", "due_at"}:
        delay, due_at = defaults.get("delay"), defaults.get("due_at")
        changes["delay_ms"] = 0 if delay is None else duration_ms(delay)
        changes["due_at"] = None if due_at is None else instant_ms(due_at)
    if "ttl" not in given:
        changes["ttl_ms"] = duration_ms(defaults.get("ttl", 0))
    if "tries" not in given:
        changes["tries"] = defaults.get("tries", DEFAULT_TRIES)
    if "priority" not in given:
        changes["priority"] = defaults.get("priority", Priority.NORMAL)
    if common := defaults.get("attributes"):
        changes["attributes"] = {**common, **job.attributes}
    return msgspec.structs.replace(job, **changes)


LISTED = ("id", "body", "body_b64", "due_at", "tries", "priority", "attributes")
NULL = msgspec.Raw(b"null")


def _is_listed(given: dict[str, msgspec.Raw]) -> bool:
    """Whether `list --json`, `get` or `reserve` wrote the line."""
    return given.keys() >= {"namespace", "queue", "born"}


def _listed(given: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    """What of a listed job goes into a new one."""
    kept = {name: given[name] for name in LISTED if given.get(name, NULL) != NULL}
    expires_at = msgspec.json.decode(given.get("expires_at", b"0"), type=int)
    if expires_at:
        left_ms = expires_at - SystemClock().now_ms()
        if left_ms <= 0:
            raise InvalidRequest("job has expired")
        kept["ttl"] = msgspec.Raw(f'"{left_ms}ms"'.encode())
    return kept


def load_file(target: Target, queue: Queue | None, path: Path, defaults: JobFields, if_exists: IfExists) -> None:
    """Push every line, into its own queue if none is given; LinesRefused at the end if some could not be."""
    name = "standard input" if str(path) == "-" else str(path)
    with target.connect(new=True) as client:
        loader = Loader(client, queue, name, defaults, if_exists, as_json=target.json)
        size = path.stat().st_size if path.is_file() else None
        with _open(path) as source, show_progress(name, as_json=target.json, total=size, unit="bytes") as progress:
            loader.run(source, progress.advance_to)
    _report(loader.counts, queue, name, target)


def _open(path: Path) -> BinaryIO:
    if str(path) == "-":
        return sys.stdin.buffer
    try:
        return path.open("rb")
    except OSError as error:
        raise InvalidRequest(f"cannot read {path}: {error.strerror or error}") from None


def _report(counts: LoadCounts, queue: Queue | None, name: str, target: Target) -> None:
    document = {
        **(queue_document(queue) if queue else {"namespace": target.space, "queue": None}),
        "file": name,
        "accepted": counts.accepted,
        "kept": counts.kept,
        "replaced": counts.replaced,
        "failed": counts.failed,
        "seconds": round(counts.seconds, 3),
        "jobs_per_second": round(counts.pushed / counts.seconds, 1),
    }
    parts = [f"{counts.accepted:,} accepted"]
    parts += [f"{counts.kept:,} kept"] if counts.kept else []
    parts += [f"{counts.replaced:,} replaced"] if counts.replaced else []
    parts += [f"{counts.failed:,} refused"] if counts.failed else []
    rate = f"{counts.pushed / counts.seconds:,.0f} jobs/s"
    text = f"{queue or target.space}: {', '.join(parts)} in {counts.seconds:.1f}s ({rate})"
    target.answer.show(document, text)
    if counts.failed:
        raise LinesRefused(f"{counts.failed:,} of {counts.failed + counts.pushed:,} lines of {name} were not pushed")
