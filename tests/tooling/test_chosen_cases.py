"""The cases that tests/lanes.toml chooses for a store reach every function of its modules and every named statement.

The contract suite runs in full on stores that have their own implementation of the rules. MySQL shares its rules with
PostgreSQL, and a group has other stores do the work: for these, a few cases reach all that is their own.
"""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from duetime.stores.sql.queries import load_queries
from tests.plugins.lanes import ROOT
from tests.plugins.reach import FOLDERS, OUT, SOURCE

MODULES = {
    "mysql": ["stores/mysql/session.py", "stores/mysql/step.py", "stores/mysql/store.py"],
    "group": ["stores/group/layout.py", "stores/group/store.py", "stores/group/verbs.py"],
}
TESTED_ELSEWHERE = {
    "mysql": {
        # tests/faults/test_outbox.py
        "delete_outbox_jobs",
        "insert_outbox_job",
        "next_outbox_jobs",
        "outbox_rules",
        "set_aside_outbox_jobs",
        "set_aside_outbox_queue",
        # tests/faults/test_database_faults.py, tests/faults/test_failover.py
        "failed_over_at",
        "is_lost",
        # tests/unit/test_sql_mysql.py; a step deletes old announcements now and then, counted from a random number
        "delete_old_announcements",
        # for columns of SQLite, which take values of any type
        "set_aside_jobs",
    },
    # tests/faults/test_group.py and test_group_members.py: members that are down, or whose layout changes
    "group": {"_find_members", "_unavailable", "get", "ping"},
}


def reached_by(kind: str, out: Path) -> set[str]:
    environment = {**os.environ, OUT: str(out), FOLDERS: ":".join(sorted({str(Path(m).parent) for m in MODULES[kind]}))}
    # Random calls and several processes at the same time take long, and reach nothing else.
    few = "not test_property and not test_concurrency"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "-p",
        "tests.plugins.reach",
        "tests/contract",
        "-k",
        few,
    ]
    done = subprocess.run(
        [*command, "--stores", kind], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return {item for reached in json.loads(out.read_text()).values() for item in reached}


def functions_of(module: str) -> Iterator[tuple[str, range]]:
    """The functions of a module, and the lines of their bodies."""
    for node in ast.walk(ast.parse((SOURCE / module).read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, range(node.body[0].lineno, (node.end_lineno or 0) + 1)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", MODULES)
def test_the_chosen_cases_reach_everything(kind: str, tmp_path: Path) -> None:
    reached = reached_by(kind, tmp_path / "reached.json")
    lines = {(module, int(line)) for item in reached if " " in item for module, _, line in [item.split(" ")]}

    missed = {
        name
        for module in MODULES[kind]
        for name, body in functions_of(module)
        if not any((module, line) in lines for line in body)
    }
    if kind == "mysql":
        missed |= load_queries("mysql").keys() - reached

    missed -= TESTED_ELSEWHERE[kind]
    assert not missed, f"not reached: {sorted(missed)}; choose further cases in tests/lanes.toml"
