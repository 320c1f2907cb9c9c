"""Log lines: one per event, whatever the event says."""

import json
import logging
import sys

from duetime.cli.logs import ConsoleFormatter, JsonFormatter


def record(message: str, **fields: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "duetime.x", "levelname": "INFO", "msg": message, "created": 1.5})
    made.__dict__.update(fields)
    return made


def test_a_console_line_has_time_level_event_and_fields() -> None:
    line = ConsoleFormatter().format(record("pool_open", pool="default", count=3))
    assert line == "1970-01-01T00:00:01.500Z INFO duetime.x pool_open pool=default count=3"


def test_a_json_line_has_the_same_as_a_document() -> None:
    line = JsonFormatter().format(record("pool_open", pool="default", count=3))
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:01.500Z",
        "level": "info",
        "logger": "duetime.x",
        "event": "pool_open",
        "pool": "default",
        "count": 3,
    }


def test_neither_line_breaks_nor_terminal_codes_get_through() -> None:
    evil = "/a\n2026-01-01 INFO forged\x1b[2J\u2028"
    for formatter in (ConsoleFormatter(), JsonFormatter()):
        line = formatter.format(record(evil, path=evil))
        assert len(line.splitlines()) == 1
        assert "\x1b" not in line


def test_passwords_are_masked() -> None:
    for formatter in (ConsoleFormatter(), JsonFormatter()):
        line = formatter.format(record("redis://u:hush@h is down", url="redis://:hush@h"))
        assert "hush" not in line


def test_an_exception_keeps_its_traceback() -> None:
    try:
        raise ValueError("redis://:hush@h")
    except ValueError:
        failed = record("failed", exc_info=sys.exc_info())
    assert "ValueError" in ConsoleFormatter().format(failed)
    assert "Traceback" in json.loads(JsonFormatter().format(failed))["exception"]
    assert "hush" not in ConsoleFormatter().format(failed) + JsonFormatter().format(failed)
