"""Log lines: one per event, whatever the event says."""

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from duetime.model.errors import InvalidSettings
from duetime.model.logs import (
    MAX_FIELD,
    REQUEST_ID,
    ConsoleFormatter,
    JsonFormatter,
    LineFile,
    hide_secrets,
    reopen_logs,
    set_up_logging,
)
from duetime.model.settings import load
from tests.plugins.growth import LINEAR, growth


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
    console = ConsoleFormatter().format(failed)
    assert "ValueError" in console
    assert all(line.startswith("  | ") for line in console.splitlines()[1:])
    assert "Traceback" in json.loads(JsonFormatter().format(failed))["exception"]
    assert "hush" not in ConsoleFormatter().format(failed) + JsonFormatter().format(failed)


def test_a_traceback_cannot_forge_a_line() -> None:
    try:
        raise ValueError("x\n2026-01-01T00:00:00.000Z INFO duetime.x forged\x1b[2J\r2026")
    except ValueError:
        failed = record("failed", exc_info=sys.exc_info())
    line = ConsoleFormatter().format(failed)
    assert not any(row.startswith("2026") for row in line.splitlines())
    assert "\x1b" not in line
    assert len(JsonFormatter().format(failed).splitlines()) == 1


def test_a_value_cannot_pass_for_another_field() -> None:
    line = ConsoleFormatter().format(record("access", path='/x code=200 "', code=404))
    assert line.endswith(r'access path="/x code=200 \"" code=404')
    assert json.loads(JsonFormatter().format(record("access", level="fatal", event="forged")))["event"] == "access"


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer hush-hush-hush",
        "{'authorization': 'Basic hush-hush-hush'}",
        "(b'x-token', b'hush-hush-hush')",
        "GET /x?a=1&token=hush-hush-hush failed",
        "sent bearer hush-hush-hush to nobody",
        "redis://u:hush-hush-hush@h/0",
    ],
)
def test_tokens_are_masked_everywhere(text: str) -> None:
    for formatter in (ConsoleFormatter(), JsonFormatter()):
        line = formatter.format(record(text, detail=text, x_token="hush-hush-hush", Authorization="hush-hush-hush"))
        assert "hush" not in line


HOSTILE = (
    *("?token", "?", "&", "&a=", "?pwd%3D", "%3f", "://a:", "://", "@", "a:@", "slack", "a+", "a/:"),
    *("authorization: ", "authorization: bearer ", "bearer ", "cookie", "sig", "a b?token= "),
)


@pytest.mark.parametrize("piece", HOSTILE)
def test_masking_takes_time_linear_in_the_text(piece: str) -> None:
    assert growth(hide_secrets, piece) < LINEAR


def test_a_long_field_is_cut_before_it_is_masked() -> None:
    for formatter in (ConsoleFormatter(), JsonFormatter()):
        line = formatter.format(record("x" * 1_000_000, path="?token" * 1_000_000))
        assert len(line) < 3 * MAX_FIELD
        assert "..." in line


def test_a_cut_shows_no_part_of_a_password() -> None:
    for formatter in (ConsoleFormatter(), JsonFormatter()):
        line = formatter.format(record("x", url="x" * (MAX_FIELD - 18) + " redis://:hush" + "hush" * 1000 + "@h"))
        assert "redis" in line
        assert "hush" not in line


def test_a_long_error_is_cut_in_a_traceback() -> None:
    try:
        raise ValueError("x" * 1_000_000)
    except ValueError:
        failed = record("failed", exc_info=sys.exc_info())
    for formatter in (ConsoleFormatter(), JsonFormatter()):
        line = formatter.format(failed)
        assert "ValueError" in line
        assert len(line) < 100_000


def test_lines_under_a_request_carry_its_id() -> None:
    token = REQUEST_ID.set("01REQUEST")
    try:
        assert ConsoleFormatter().format(record("x")).endswith("x request_id=01REQUEST")
        assert json.loads(JsonFormatter().format(record("x")))["request_id"] == "01REQUEST"
        assert "request_id" not in JsonFormatter().format(record("access", req_id="01REQUEST"))
    finally:
        REQUEST_ID.reset(token)
    assert "request_id" not in JsonFormatter().format(record("x"))


def test_numbers_that_json_lacks_are_texts() -> None:
    line = json.loads(JsonFormatter().format(record("x", endless=float("inf"), none=None, yes=True, half=0.5)))
    assert {name: line[name] for name in ("endless", "none", "yes", "half")} == {
        "endless": "inf",
        "none": None,
        "yes": True,
        "half": 0.5,
    }


# --- where lines go


@pytest.fixture
def loggers() -> Iterator[None]:
    """Puts back what a test sets up for the whole process."""
    root, ours, access = logging.getLogger(), logging.getLogger("duetime"), logging.getLogger("duetime.access")
    before = [(logger, logger.handlers[:], logger.level, logger.propagate) for logger in (root, ours, access)]
    yield
    for logger, handlers, level, propagate in before:
        for handler in logger.handlers:
            if isinstance(handler, LineFile):
                handler.close()
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate = propagate


def set_up(**settings: object) -> None:
    set_up_logging(load(flags={}, environment={}, file={"log_format": "json", **settings}))


def events(path: Path) -> list[str]:
    return [json.loads(line)["event"] for line in path.read_text().splitlines()]


def test_files_are_begun_anew_when_they_were_moved_away(loggers: None, tmp_path: Path) -> None:
    all_lines, access_lines = tmp_path / "duetime.log", tmp_path / "access.log"
    set_up(log_file=str(all_lines), access_log_file=str(access_lines))
    log, access = logging.getLogger("duetime.x"), logging.getLogger("duetime.access")
    log.info("first")
    access.info("request 1")
    for path in (all_lines, access_lines):
        path.rename(path.with_suffix(".1"))
    log.info("second")
    reopen_logs()
    log.info("third")
    access.info("request 2")
    assert events(tmp_path / "duetime.1") == ["first", "second"]
    assert events(all_lines) == ["third"]
    assert events(tmp_path / "access.1") == ["request 1"]
    assert events(access_lines) == ["request 2"]


def test_the_access_log_is_among_the_others_without_a_file_of_its_own(loggers: None, tmp_path: Path) -> None:
    path = tmp_path / "duetime.log"
    set_up(log_file=str(path), log_level="error")
    logging.getLogger("duetime.x").warning("below the level")
    logging.getLogger("duetime.access").info("request")
    assert events(path) == ["request"]


def test_a_file_that_cannot_be_opened_again_is_written_on(loggers: None, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    set_up(log_file=str(folder / "duetime.log"))
    moved = tmp_path / "moved"
    folder.rename(moved)
    reopen_logs()
    logging.getLogger("duetime.x").info("still here")
    assert events(moved / "duetime.log") == ["log_not_reopened", "still here"]


def test_a_file_that_cannot_be_written_is_refused_at_the_start(loggers: None, tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"access_log_file: cannot write to .*nowhere"):
        set_up(access_log_file=str(tmp_path / "nowhere" / "access.log"))
