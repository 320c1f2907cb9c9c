"""Which stores were really tested, and what was not tested at all.

A test runs on a store when it has a parameter `store_kind` (a parametrised fixture of that name will do) or the marker
`@pytest.mark.store_kind("sqlite")`. The summary counts the tests that ran per store and names the skipped ones last.
With CI=true a skip fails the run: a test that did not run has shown nothing.

`--stores memory,sqlite` leaves out tests of other stores; tests that belong to no store always run.
"""

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.plugins.ci import in_ci

NO_STORE = "(no store)"
PROPERTY = "store_kind"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--stores", metavar="KINDS", help="run tests of these stores only, such as memory,sqlite")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "store_kind(name): the store this test runs on, for the count per store")
    if not hasattr(config, "workerinput"):  # under xdist the reports of all workers arrive in the controller
        config.pluginmanager.register(StoreCounts(), "duetime-store-counts")


def store_kind_of(item: pytest.Item) -> str | None:
    callspec = getattr(item, "callspec", None)
    if callspec is not None and "store_kind" in callspec.params:
        return str(callspec.params["store_kind"])
    marker = item.get_closest_marker("store_kind")
    return str(marker.args[0]) if marker is not None else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    option: str | None = config.getoption("--stores")
    wanted = set(option.split(",")) if option else None
    chosen: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        kind = store_kind_of(item)
        if wanted is not None and kind is not None and kind not in wanted:
            left_out.append(item)
            continue
        item.user_properties.append((PROPERTY, kind or NO_STORE))
        chosen.append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = chosen


class StoreCounts:
    """Counts reports in the process that prints the summary."""

    def __init__(self) -> None:
        self.passed: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.skipped: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        kind = str(dict(report.user_properties).get(PROPERTY, NO_STORE))
        if report.skipped and not hasattr(report, "wasxfail"):
            self.skipped[report.nodeid] = skip_reason(report)
        elif report.failed:
            self.failed[kind] += 1
        elif report.when == "call":
            self.passed[kind] += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.skipped[report.nodeid] = skip_reason(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int | pytest.ExitCode) -> None:
        if self.skipped and in_ci() and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
        yield  # after every other section, pytest's own included
        kinds = sorted(self.passed.keys() | self.failed.keys())
        if kinds:
            terminalreporter.section("tests per store")
            for kind in kinds:
                terminalreporter.write_line(f"{kind:<12} {self.passed[kind]:>6} passed {self.failed[kind]:>6} failed")
        if self.skipped:
            verdict = "not run, which fails the run with CI=true" if in_ci() else "not run"
            terminalreporter.section(f"{len(self.skipped)} {verdict}", yellow=True)
            for nodeid, reason in sorted(self.skipped.items()):
                terminalreporter.write_line(f"{nodeid}: {reason}")


def skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return str(report.longrepr)
