"""Log lines of the server: one event per line, for people or as JSON, on standard error.

What comes from outside (a path, an error's text) can hold line breaks and terminal codes; neither form lets them
through.
"""

import json
import logging
import sys
from typing import Any

from duetime.clock import rfc3339
from duetime.settings import mask

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def set_up_logging(level: str, form: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else ConsoleFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("duetime").setLevel(level.upper())


class ConsoleFormatter(logging.Formatter):
    """`2026-11-15T09:00:00.000Z INFO duetime.pools pool_open pool=default`"""

    def format(self, record: logging.LogRecord) -> str:
        parts = [rfc3339(int(record.created * 1000)), record.levelname, record.name, _safe(record.getMessage())]
        parts += [f"{name}={_safe(str(value))}" for name, value in _fields(record).items()]
        line = " ".join(parts)
        return f"{line}\n{mask(self.formatException(record.exc_info))}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": rfc3339(int(record.created * 1000)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": mask(record.getMessage()),
            **{
                name: value if isinstance(value, int | float) else mask(str(value))
                for name, value in _fields(record).items()
            },
        }
        if record.exc_info:
            line["exception"] = mask(self.formatException(record.exc_info))
        return json.dumps(line)  # ASCII: other ends of lines than \n stay escaped, too


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def _safe(text: str) -> str:
    """As it is where that is one harmless word or line, else quoted and escaped."""
    text = mask(text)
    return text if text.isprintable() and '"' not in text else ascii(text)
