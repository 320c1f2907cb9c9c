"""How long every test took: build/durations.json, slowest first, and the sums per folder in the summary."""

import json
from collections import Counter
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "build" / "durations.json"


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # under xdist the reports of all workers arrive in the controller
        config.pluginmanager.register(Durations(), "duetime-durations")


class Durations:
    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration  # type: ignore[assignment]

    def pytest_sessionfinish(self) -> None:
        if self.seconds:
            FILE.parent.mkdir(exist_ok=True)
            FILE.write_text(json.dumps({name: round(took, 3) for name, took in self.seconds.most_common()}, indent=0))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.seconds:
            return
        folders: Counter[str] = Counter()
        for name, took in self.seconds.items():
            folders["/".join(name.partition("::")[0].split("/")[:2])] += took  # type: ignore[assignment]
        terminalreporter.section(f"seconds per folder, setup and teardown included (all tests: {FILE})")
        for folder, took in folders.most_common():
            terminalreporter.write_line(f"{took:>8.1f} {folder}")
