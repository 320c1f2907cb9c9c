"""Which tests run in one process when several run side by side: those that share a Spark session; others run anywhere.

A scheduler of ours, because xdist's own groups travel in the names of tests, where pytest 9.2 no longer lets them in.
"""

import pytest
from xdist.scheduler import LoadScopeScheduling

SPARK = "tests/spark/"
WITHOUT_SESSION = tuple(f"{SPARK}test_{name}.py::" for name in ("batch_journal", "cluster", "connect", "pushing"))
"""Tests that need no session or start processes with their own. In the shared process they would only make it last."""


class SideBySide(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return SPARK if nodeid.startswith(SPARK) and not nodeid.startswith(WITHOUT_SESSION) else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> SideBySide:
    return SideBySide(config, log)
