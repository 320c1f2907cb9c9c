"""A worker slot when no process can be started in it."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from duetime.model.backoff import Fixed
from duetime.model.errors import InvalidSettings
from duetime.model.settings import Settings
from duetime.server.supervision.program import Start
from duetime.server.supervision.worker_slot import WorkerProcess, WorkerSlot
from tests.plugins.until import until

START = Start("1", Settings(), {})


def make_slot(command: Sequence[str]) -> WorkerSlot:
    return WorkerSlot(START, command, {}, ended=lambda child: None, others_serve=lambda: False, restart=Fixed(1))


async def test_a_missing_interpreter_is_logged_and_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    interpreter = tmp_path / "python"
    slot = make_slot([str(interpreter)])
    kept = asyncio.create_task(slot.keep())
    async with asyncio.timeout(60):
        await until(lambda: sum(record.message == "worker_not_started" for record in caplog.records) >= 2)
        interpreter.write_text("#!/bin/sh\nexec sleep 600\n")
        interpreter.chmod(0o755)
        await until(lambda: any(slot.pids))
        abort = asyncio.Event()
        abort.set()
        child = slot.child
        assert child is not None
        child.kill()
        await slot.leave(abort)
        await kept


async def test_new_settings_whose_worker_cannot_be_started_are_refused() -> None:
    slot = make_slot(["/nowhere/python"])
    slot.child = before = WorkerProcess(START)
    with pytest.raises(InvalidSettings, match="cannot start a worker"):
        await slot.replace(START, abort=asyncio.Event())
    assert slot.child is before
