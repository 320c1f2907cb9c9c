"""The assets of examples/dagster, run by Dagster itself in this process, on a SQLite file."""

import runpy
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import duetime

dg = pytest.importorskip("dagster", reason="dagster is not installed: run make setup-dev")
EXAMPLE = Path(__file__).parents[2] / "examples" / "dagster" / "recall.py"
SOON = datetime.now(UTC) + timedelta(days=10)


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLE))


class Dagster:
    def __init__(self, example: Mapping[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._parts = [example[name] for name in ("members", "recall_letters", "no_letter_is_late")]
        self._table = folder / "members.csv"
        monkeypatch.setenv("DUETIME_URL", f"sqlite:{folder}/jobs.db")
        monkeypatch.setenv("MEMBERS", str(self._table))

    def materialize(self, **members: datetime) -> tuple[dict[str, int], bool]:
        """What the asset reports, and whether the check passed."""
        rows = [f"{name},{ends_at.isoformat()}" for name, ends_at in members.items()]
        self._table.write_text("\n".join(["member,ends_at", *rows]))
        with dg.DagsterInstance.ephemeral() as instance:
            result = dg.materialize(self._parts, instance=instance, raise_on_error=True)
        [done] = result.asset_materializations_for_node("recall_letters")
        [check] = result.get_asset_check_evaluations()
        return {name: value.value for name, value in done.metadata.items()}, check.passed


def test_a_repeated_run_changes_only_the_members_whose_date_has_changed(
    example: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dagster = Dagster(example, tmp_path, monkeypatch)
    counts, passed = dagster.materialize(ann=SOON, bob=SOON, joe=datetime.now(UTC))
    assert (counts, passed) == ({"accepted": 2, "replaced": 0, "unchanged": 0, "past": 1}, True)
    later = SOON + timedelta(days=5)
    counts, passed = dagster.materialize(ann=later, bob=SOON, eve=SOON)
    assert (counts, passed) == ({"accepted": 1, "replaced": 1, "unchanged": 1, "past": 0}, True)
    with duetime.connect(f"sqlite:{tmp_path}/jobs.db") as client:
        job = client.queue("recall").get("recall-ann")
        assert job.due_at == int((later - timedelta(days=3)).timestamp() * 1000)
        assert job.body == b"ann"


def test_a_letter_that_nobody_sends_fails_the_check_and_one_that_was_sent_is_not_sent_again(
    example: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dagster = Dagster(example, tmp_path, monkeypatch)
    ends_at = datetime.now(UTC) + timedelta(days=3)
    with duetime.connect(f"sqlite:{tmp_path}/jobs.db") as client:
        client.queue("recall").push("ann", id="recall-ann")  # by an earlier run, and due now
        assert not dagster.materialize(ann=ends_at)[1]
        with client.queue("recall").take() as job:
            assert job.text() == "ann"
    counts, passed = dagster.materialize(ann=ends_at)
    assert (counts, passed) == ({"accepted": 0, "replaced": 0, "unchanged": 0, "past": 1}, True)
