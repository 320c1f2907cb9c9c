"""How tests run side by side: those that share a Spark session in one or two processes, others anywhere, long first.

A scheduler of ours, because xdist's own groups travel in the names of tests, where pytest 9.2 no longer lets them in.
"""

import os

import pytest
from xdist.scheduler import LoadScopeScheduling

SPARK = "tests/spark/"
WITHOUT = ("airflow", "batch_journal", "cluster", "connect", "notebook", "pushing", "repair_task")
WITHOUT_SESSION = tuple(f"{SPARK}test_{name}.py::" for name in WITHOUT)
"""Tests that need no session or start processes with their own. In a shared process they would only make it last."""
STORIES = tuple(f"{SPARK}test_{name}.py::" for name in ("demo", "far_storage", "growth", "lost_answers", "many_hosts"))
"""In make test-full half of the time that sessions take, so they run in a process of their own there."""
REQUESTS, IMAGE = "tests/protocols/v1/test_schemathesis.py", "tests/tooling/test_deploy.py"
PLANS = tuple(f"tests/unit/test_sql_{store}_plans.py" for store in ("postgres", "mysql"))
SHARED = (SPARK, REQUESTS, f"{IMAGE}::test_the_image_", *PLANS)
"""Tests that share what takes long to make: one process makes it, not each."""
LONG = (REQUESTS, IMAGE, "tests/docs/test_call_paths.py")
QUICK = tuple(f"tests/{name}/" for name in ("unit", "contract", "protocols", "docs", "tooling"))
"""Folders whose tests take moments, LONG excepted. They come last: a long test at the end leaves the other cores idle.
"""


class SideBySide(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(WITHOUT_SESSION):
            return nodeid
        if nodeid.startswith(STORIES) and self.config.getoption("--full"):
            return f"{SPARK}stories"
        return next((shared for shared in SHARED if nodeid.startswith(shared)), nodeid)

    def _pending_of(self, workload: dict[str, dict[str, bool]]) -> int:
        # Asked after every test. xdist keeps what is done and counts it again each time.
        for scope in [scope for scope, tests in workload.items() if all(tests.values())]:
            del workload[scope]
        return sum(list(tests.values()).count(False) for tests in workload.values())


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> SideBySide:
    return SideBySide(config, log)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One more than there are cores: most tests of servers and workers wait for something half of their time."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_place)


def _place(item: pytest.Item) -> tuple[bool, bool]:
    is_quick = item.nodeid.startswith(QUICK) and not item.nodeid.startswith(LONG)
    return not item.nodeid.startswith(SPARK), is_quick
