import subprocess
import sys
from pathlib import Path

from bench.report import interleave, number, percentile, ratio, spread, table

ROOT = Path(__file__).parents[2]


def test_contenders_take_turns_and_the_first_one_changes() -> None:
    calls: list[str] = []

    def contender(name: str, value: float):
        def run() -> float:
            calls.append(name)
            return value

        return run

    results = interleave({"a": contender("a", 1.0), "b": contender("b", 2.0)}, rounds=3, warmups=1)

    assert calls == ["a", "b", "b", "a", "a", "b", "b", "a"]
    assert results == {"a": [1.0] * 3, "b": [2.0] * 3}


def test_percentile_is_a_measured_value() -> None:
    values = [float(value) for value in range(1, 101)]

    assert percentile(values, 50) == 50
    assert percentile(values, 99) == 99
    assert percentile(values, 100) == 100
    assert percentile([7.0], 99) == 7.0


def test_numbers_read_well() -> None:
    assert number(1234567.8) == "1,234,568"
    assert number(0.012345) == "0.0123"
    assert ratio(12.0, 5.0) == "2.40x"
    assert spread([9.0, 10.0, 11.0]) == "± 10 %"


def test_table_aligns() -> None:
    assert table(["what", "jobs/s"], [["push", 12345.0], ["ack", 7]]) == (
        "what  jobs/s\n----  ------\npush  12,345\nack        7"
    )


def test_an_unknown_benchmark_is_refused_by_name() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "bench", "nonsense"], cwd=ROOT, capture_output=True, text=True, timeout=150, check=False
    )

    assert result.returncode == 2
    assert "'nonsense'" in result.stderr
