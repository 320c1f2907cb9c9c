"""A worker has more places while jobs are late, and fewer when they are free."""

from pathlib import Path
from typing import Any

import pytest

from duetime.worker.daemon import LATE_MS, ConcurrencyScaler
from tests.plugins.until import until
from tests.worker.conftest import Start

LATE = LATE_MS + 1


def test_concurrency_grows_by_a_half_while_jobs_are_late_and_all_are_busy() -> None:
    count = ConcurrencyScaler(2, 9, calm_s=30)
    assert [count.update(LATE, busy, 0) for busy in (1, 2, 3, 4, 6, 9, 9)] == [2, 3, 4, 6, 9, 9, 9]
    assert ConcurrencyScaler(2, 9, 30).update(LATE_MS, 2, 0) == 2


def test_concurrency_shrinks_one_by_one_when_one_was_free_for_long() -> None:
    count = ConcurrencyScaler(1, 4, calm_s=30)
    for busy in (1, 2, 3):
        count.update(LATE, busy, 0)
    assert count.concurrency == 4
    assert [count.update(0, 2, now) for now in (0, 29, 30, 59, 60)] == [4, 4, 3, 3, 2]
    assert [count.update(0, busy, now) for busy, now in ((2, 80), (1, 89), (1, 118), (0, 119), (0, 200))] == [
        2,
        2,
        2,
        1,
        1,
    ]


@pytest.mark.parametrize("pool", ["processes", "threads"])
async def test_a_worker_grows_for_late_jobs_and_shrinks_again(
    start: Start, sample: Any, tmp_path: Path, pool: str
) -> None:
    gate = tmp_path / "gate"
    sample.gate.bulk([(str(number), str(gate)) for number in range(3)])
    worker = start("--pool", pool, "-c", "1..3", "--sleep", "50ms")
    await worker.until_noted("began", 3)  # the first one waits for the gate, so the others need places of their own
    assert "concurrency=3" in worker.err.read_text()
    gate.touch()
    await worker.until_noted("ran", 3)
    await until(lambda: "concurrency=1" in worker.err.read_text())
    sample.plain.delay("after")
    await worker.until_noted("ran", key="after")
