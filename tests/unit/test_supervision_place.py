"""A worker's place when no process can be started in it."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from duetime.backoff import Fixed
from duetime.errors import InvalidSettings
from duetime.server.supervision.program import Start
from duetime.server.supervision.worker_process import WorkerProcess
from duetime.server.supervision.worker_slot import WorkerSlot
from duetime.settings import Settings
from tests.plugins.until import until

START = Start("1", Settings(), {})


def make_place(command: Sequence[str]) -> WorkerSlot:
    return WorkerSlot(START, command, {}, ended=lambda child: None, others_serve=lambda: False, restart=Fixed(1))


async def test_a_missing_interpreter_is_logged_and_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    interpreter = tmp_path / "python"
    place = make_place([str(interpreter)])
    keeping = asyncio.create_task(place.keep())
    async with asyncio.timeout(60):
        await until(lambda: sum(record.message == "worker_not_started" for record in caplog.records) >= 2)
        interpreter.write_text("#!/bin/sh\nexec sleep 600\n")
        interpreter.chmod(0o755)
        await until(lambda: any(place.pids))
        hurry = asyncio.Event()
        hurry.set()
        child = place.child
        assert child is not None
        child.kill()
        await place.leave(hurry)
        await keeping


async def test_new_settings_whose_worker_cannot_be_started_are_refused() -> None:
    place = make_place(["/nowhere/python"])
    place.child = before = WorkerProcess(START)
    with pytest.raises(InvalidSettings, match="cannot start a worker"):
        await place.replace(START, hurry=asyncio.Event())
    assert place.child is before
