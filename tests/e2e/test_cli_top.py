"""`top` and `demo`: what they show, also where nobody can see them live."""

import re

import pytest

from duetime.cli.top import flow
from duetime.model.job import Counts
from tests.e2e.shell import Shell


def test_one_frame_of_top(shell: Shell) -> None:
    shell.ok("push", "mail", "x", "--at", "2020-01-01T00:00:00Z", "--priority", "low")
    shell.ok("push", "mail", "x", "--priority", "high")
    shell.ok("push", "night", "x", "--delay", "1h")
    shell.ok("queue", "pause", "night")
    [frame] = shell.json("top", "--once")
    assert frame.keys() == {"now", "totals", "queues", "bridges"}
    mail, night = frame["queues"]
    assert mail.keys() == {
        "namespace",
        "queue",
        "counts",
        "rules",
        "late_ms",
        "in_per_s_at_least",
        "out_per_s_at_least",
    }
    # The oldest one counts, though the other goes first.
    truth = frame["now"] - 1_577_836_800_000
    assert abs(mail["late_ms"] - truth) < 0.05 * truth
    assert (night["late_ms"], night["rules"]["paused"], night["counts"]["delayed"]) == (None, True, 1)
    text = shell.ok("top", "--once").out
    assert "2 queues: 2 ready, 1 delayed, 0 running, 0 failed" in text
    assert "paused" in text
    assert [one["queue"] for one in shell.json("top", "night", "--once")[0]["queues"]] == ["night"]


def test_top_refuses_an_interval_that_would_only_heat(shell: Shell) -> None:
    assert shell.run("top", "--interval", "1ms", "--once").code == 2


@pytest.mark.parametrize(
    ("totals", "expected"),
    [([5], (None, None)), ([5, 25, 15], (20 / 2, 10 / 2)), ([5, 5], (0, 0))],
)
def test_rates_are_lower_bounds_from_the_changes_of_the_total(
    totals: list[int], expected: tuple[float | None, float | None]
) -> None:
    looks = [Counts(ready=total, now=1000 * at) for at, total in enumerate(totals)]
    assert flow(looks) == expected


def test_the_demo_shows_its_steps(shell: Shell) -> None:
    ran = shell.spawn("demo", "--fast", "--json")
    assert (ran.code, ran.err) == (0, "")
    *story, sums = ran.documents
    assert [(step["job"], step["state"]) for step in story] == [
        ("reminder", "delayed"),
        ("invoice", "delayed"),
        ("invoice", "running"),
        ("invoice", "delayed"),
        ("reminder", "running"),
        ("reminder", "done"),
        ("invoice", "running"),
        ("invoice", "done"),
        ("webhook", "ready"),
        ("webhook", "running"),
        ("webhook", "delayed"),
        ("webhook", "running"),
        ("webhook", "failed"),
        ("webhook", "ready"),
        ("webhook", "running"),
        ("webhook", "done"),
    ]
    assert (sums["jobs"], sums["deliveries"], sums["early"]) == (3, 6, 0)
    assert 0 <= sums["lateness_ms"]["min"] <= sums["lateness_ms"]["median"] <= sums["lateness_ms"]["max"]


def test_the_demo_draws_its_time_line(shell: Shell) -> None:
    ran = shell.ok("demo", "--fast")
    assert re.search(r"^ reminder +····", ran.out, re.MULTILINE)
    assert "no tries left" in ran.out
    assert "3 jobs, 6 deliveries, none early" in ran.out
