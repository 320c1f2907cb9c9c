"""Which tests run in one process when several run side by side: those that share a Spark session; others run anywhere.

A scheduler of ours, because xdist's own groups travel in the names of tests, where pytest 9.2 no longer lets them in.
"""

import pytest
from xdist.scheduler import LoadScopeScheduling

SPARK = "tests/spark/"


class SideBySide(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return SPARK if nodeid.startswith(SPARK) else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> SideBySide:
    return SideBySide(config, log)
