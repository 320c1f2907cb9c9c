"""Writes php-delayqueue's four daily logs: a line per request and per notification, so that the two can be compared.

    request_20261115.txt   [2026-11-15 09:00:00]p_name=duetime added topic=mail namespace=shop id=17 ...
    notify_20261115.txt    [2026-11-15 09:10:00]p_name=duetime notified topic=mail namespace=shop id=17 status=200 ...
    err_20261115.txt       warnings and errors of all parts
    notice_20261115.txt    everything else

Without a folder no lines are written about single requests and notifications; the journal has them.
"""

import logging
import os
from datetime import datetime, tzinfo
from pathlib import Path

from duetime.model.logs import ConsoleFormatter

REQUEST, NOTIFY, ALL = "duetime.request", "duetime.notify", "duetime"


class DailyFile(logging.Handler):
    """Appends lines to `<kind>_<day>.txt`. Several processes may do so, because every line is one write."""

    def __init__(self, folder: Path, kind: str, zone: tzinfo | None) -> None:
        super().__init__(logging.INFO)
        self._folder = folder
        self._kind = kind
        self._zone = zone
        self._day = ""
        self._file = -1

    def emit(self, record: logging.LogRecord) -> None:
        try:
            at = datetime.fromtimestamp(record.created, self._zone)
            os.write(self._opened(at.strftime("%Y%m%d")), line_of(record, at).encode(errors="replace"))
        except OSError:
            self.handleError(record)

    def _opened(self, day: str) -> int:
        if day != self._day:
            self.close_file()
            path = self._folder / f"{self._kind}_{day}.txt"
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
            self._day = day
        return self._file

    def close_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file, self._day = -1, ""

    def close(self) -> None:
        self.close_file()
        super().close()


def line_of(record: logging.LogRecord, at: datetime) -> str:
    """The same text as in the server's log, with php-delayqueue's head in place of time, level and logger."""
    _, _, _, text = ConsoleFormatter().format(record).split(" ", 3)
    return f"[{at:%Y-%m-%d %H:%M:%S}]p_name=duetime {text}\n"


def _other(record: logging.LogRecord) -> bool:
    return record.name not in (REQUEST, NOTIFY)


class DailyLogs:
    """An async context manager: inside it the lines go to `folder`. If that is empty, no lines are written."""

    def __init__(self, folder: str, zone: tzinfo | None) -> None:
        self._folder = Path(folder) if folder else None
        self._zone = zone
        self._added: list[tuple[logging.Logger, DailyFile]] = []
        self._levels: dict[str, int] = {}

    async def __aenter__(self) -> "DailyLogs":
        for name in (REQUEST, NOTIFY):
            logger = logging.getLogger(name)
            self._levels[name] = logger.level
            logger.setLevel(logging.INFO if self._folder else logging.CRITICAL)
            logger.propagate = False
        if self._folder:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._add(REQUEST, "request")
            self._add(NOTIFY, "notify")
            self._add(ALL, "err").setLevel(logging.WARNING)
            notice = self._add(ALL, "notice")
            notice.addFilter(lambda record: record.levelno < logging.WARNING)
        return self

    def _add(self, name: str, kind: str) -> DailyFile:
        assert self._folder is not None
        handler = DailyFile(self._folder, kind, self._zone)
        handler.addFilter(lambda record: name != ALL or _other(record))
        logging.getLogger(name).addHandler(handler)
        self._added.append((logging.getLogger(name), handler))
        return handler

    async def __aexit__(self, *_: object) -> None:
        for logger, handler in self._added:
            logger.removeHandler(handler)
            handler.close()
        for name, level in self._levels.items():
            logging.getLogger(name).setLevel(level)
            logging.getLogger(name).propagate = True
        self._added = []
