"""Log lines: one event per line, for people or as JSON, on standard error or in files.

Lines written during a request carry the request's id. Both formats escape line breaks and terminal codes and mask
secrets in texts from outside. Servers and workers call `set_up_logging` once at start; all other code uses `logging`.
"""

import json
import logging
import os
import re
import sys
from contextvars import ContextVar
from typing import Any

from duetime.model.clock import rfc3339
from duetime.model.errors import InvalidSettings
from duetime.model.masking import MASK, mask
from duetime.model.settings import Settings

REQUEST_ID: ContextVar[str] = ContextVar("duetime_request_id", default="")
"""The id of the current request, or empty."""
ACCESS = "duetime.access"
"""The logger of the access log, which may have a file of its own."""

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_SECRET_FIELD = re.compile(r"token|passw|secret|authorization|cookie", re.IGNORECASE)
_SECRET_HEADER = re.compile(
    r"((?:authorization|x-token|cookie|x-api-key)\W{1,6}(?:b['\"])?)(?:(?:bearer|basic)\s+)?[^\s'\",;)]+", re.IGNORECASE
)
_BEARER = re.compile(r"\b(bearer\s+)[\w.~+/=:-]{8,}", re.IGNORECASE)
_PLAIN = re.compile(r"[^\s\"'=\\]+")

MAX_FIELD = 4096
"""Longer events and fields are cut."""
MAX_TRACEBACK = 32_768


def set_up_logging(settings: Settings) -> None:
    """Configures logging for this process. Raises InvalidSettings if a log file cannot be opened."""
    formatter = JsonFormatter() if settings.log_format == "json" else ConsoleFormatter()
    root, access = logging.getLogger(), logging.getLogger(ACCESS)
    _attach(root, "log_file", settings.log_file, formatter)
    root.setLevel(logging.WARNING)
    logging.getLogger("duetime").setLevel(settings.log_level.upper())
    # The access log has its own switch; the level is for everything else.
    access.setLevel(logging.INFO)
    access.propagate = not settings.access_log_file
    if settings.access_log_file:
        _attach(access, "access_log_file", settings.access_log_file, formatter)


def _attach(logger: logging.Logger, setting: str, path: str, formatter: logging.Formatter) -> None:
    try:
        handler = LineFile(path) if path else logging.StreamHandler(sys.stderr)
    except OSError as error:
        raise InvalidSettings(f"{setting}: cannot write to {path} ({error.strerror})") from None
    handler.setFormatter(formatter)
    for old in logger.handlers[:]:
        logger.removeHandler(old)
        if isinstance(old, LineFile):
            old.close()
    logger.addHandler(handler)


def reopen_logs() -> None:
    """Reopens all log files after log rotation."""
    for logger in (logging.getLogger(), logging.getLogger(ACCESS)):
        for handler in logger.handlers:
            if isinstance(handler, LineFile):
                handler.reopen()


class LineFile(logging.Handler):
    """Appends to a file, each line in one write: the lines of several processes do not mix."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = os.path.abspath(path)
        self._file = self._open()

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)

    def reopen(self) -> None:
        """Reopens the file. On failure, logs the reason and keeps the old file open."""
        try:
            new = self._open()
        except OSError as error:
            logging.getLogger("duetime.logs").error("log_not_reopened", extra={"path": self._path, "error": str(error)})
            return
        self.acquire()
        try:
            old, self._file = self._file, new
            os.close(old)
        finally:
            self.release()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            os.write(self._file, (self.format(record) + "\n").encode(errors="backslashreplace"))
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        super().close()


class ConsoleFormatter(logging.Formatter):
    """`2026-11-15T09:00:00.000Z INFO duetime.pools pool_open pool=default`

    A traceback follows on lines of its own, each after a bar, so that none of them looks like a log line.
    """

    def format(self, record: logging.LogRecord) -> str:
        parts = [rfc3339(int(record.created * 1000)), record.levelname, record.name, _event(record.getMessage())]
        parts += [f"{name}={_word(_text(value))}" for name, value in _fields(record).items()]
        line = " ".join(parts)
        if record.exc_info:
            for row in hide_secrets(self.formatException(record.exc_info), MAX_TRACEBACK).split("\n"):
                line += f"\n  | {row if row.isprintable() else ascii(row)}"
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object per line; a traceback is its field `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": rfc3339(int(record.created * 1000)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": hide_secrets(record.getMessage()),
        }
        for name, value in _fields(record).items():
            line.setdefault(name, value if isinstance(value, int) or value is None else _text(value))
        if record.exc_info:
            line["exception"] = hide_secrets(self.formatException(record.exc_info), MAX_TRACEBACK)
        return json.dumps(line)  # in ASCII, so that all line separators of Unicode are escaped


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = {
        name: MASK if value and _SECRET_FIELD.search(name) else value
        for name, value in vars(record).items()
        if name not in _STANDARD
    }
    request_id = REQUEST_ID.get()
    if request_id and "req_id" not in fields:
        fields.setdefault("request_id", request_id)
    return fields


def _text(value: object) -> Any:
    return value if isinstance(value, float) and abs(value) < float("inf") else hide_secrets(str(value))


def hide_secrets(text: str, longest: int = MAX_FIELD) -> str:
    """Cuts the text and masks passwords in URLs and tokens in queries and headers."""
    # The @ masks the password of a URL that was cut before its own @.
    shown = mask(text) if len(text) <= longest else mask(text[:longest] + "@").removesuffix("@") + "..."
    return _BEARER.sub(rf"\1{MASK}", _SECRET_HEADER.sub(rf"\1{MASK}", shown))


def _event(text: str) -> str:
    text = hide_secrets(text)
    return text if text.isprintable() and '"' not in text else ascii(text)


def _word(text: object) -> str:
    """Quotes and escapes everything but a single plain word, so that a value cannot look like another field."""
    shown = str(text)
    return shown if _PLAIN.fullmatch(shown) and shown.isprintable() else json.dumps(shown)
