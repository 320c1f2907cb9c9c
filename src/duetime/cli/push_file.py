"""`push --file`: many jobs from a file of JSON lines.

Lines go out in calls of 500 jobs or 4 MiB. A call whose jobs are all fine costs one step; when one of them is refused
the call is repeated job by job, so that a bad line never takes its neighbours with it. The error of a line is
printed on standard error as soon as it is known; the sums come at the end, on standard output.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
from duetime.model.job import DEFAULT_TRIES, IfExists, Moved, NewJob, Priority, chunks, payload_bytes
from duetime.model.names import Queue, check_queue
from duetime.wire import convert
from duetime.wire.messages import JobIn


class LinesRefused(DuetimeError):
    """Some lines were not pushed."""

    code = "lines_refused"
    status = 409


OUTCOMES = {"accepted": "accepted", "kept": "kept", "replaced": "replaced", "failed": "refused"}
"""What happens to a line, as programs and as people read it."""


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
        self.counts = Counter[str]()
        self._client = client
        self._queue = queue
        self._name = name
        self._defaults = defaults
        self._if_exists = if_exists
        self._as_json = as_json
        self._last_line = self._bytes_read = 0

    def run(self, source: BinaryIO, advance_to: Callable[[int], None]) -> None:
        """Calls `advance_to` with the bytes read so far."""
        lines = self._lines(source)
        for chunk in chunks(lines, size=lambda line: payload_bytes(line.job), key=lambda line: line.queue):
            self._send(chunk)
            self._last_line = chunk[-1].number
            advance_to(self._bytes_read)

    def _lines(self, source: BinaryIO) -> Iterator[FileLine]:
        for number, raw in enumerate(source, 1):
            self._bytes_read += len(raw)
            if (line := self._read(number, raw)) is not None:
                yield line

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
                self.counts[answer.event] += 1
            elif answer is not None:
                self._refuse(line.number, answer)

    def _interrupted(self, error: StoreUnavailable) -> StoreUnavailable:
        done = f"lines up to {self._last_line} of {self._name} are done" if self._last_line else "no line is done"
        return StoreUnavailable(f"{error.message} ({done})", line=self._last_line, **error.fields)

    def _refuse(self, number: int, error: DuetimeError) -> None:
        self.counts["failed"] += 1
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
    started = time.monotonic()
    with target.connect(new=True) as client:
        loader = Loader(client, queue, name, defaults, if_exists, as_json=target.json)
        size = path.stat().st_size if path.is_file() else None
        with _open(path) as source, show_progress(name, as_json=target.json, total=size, unit="bytes") as progress:
            loader.run(source, progress.advance_to)
    _report(loader.counts, max(time.monotonic() - started, 1e-6), queue, name, target)


def _open(path: Path) -> BinaryIO:
    if str(path) == "-":
        return sys.stdin.buffer
    try:
        return path.open("rb")
    except OSError as error:
        raise InvalidRequest(f"cannot read {path}: {error.strerror or error}") from None


def _report(counts: Counter[str], seconds: float, queue: Queue | None, name: str, target: Target) -> None:
    lines, failed = counts.total(), counts["failed"]
    rate = (lines - failed) / seconds
    document = {
        **(queue_document(queue) if queue else {"namespace": target.space, "queue": None}),
        "file": name,
        **{outcome: counts[outcome] for outcome in OUTCOMES},
        "seconds": round(seconds, 3),
        "jobs_per_second": round(rate, 1),
    }
    parts = [f"{counts[one]:,} {word}" for one, word in OUTCOMES.items() if counts[one] or one == "accepted"]
    text = f"{queue or target.space}: {', '.join(parts)} in {seconds:.1f}s ({rate:,.0f} jobs/s)"
    target.answer.show(document, text)
    if failed:
        raise LinesRefused(f"{failed:,} of {lines:,} lines of {name} were not pushed")
