"""The Airflow operator in an environment with the real Airflow, which runs real pipelines of this one."""

import json
import subprocess
import sys
from pathlib import Path

from tests.plugins.ci import missing_service

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-airflow" / "bin" / "python"
DAG = """
import json, sys
from datetime import datetime

from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization
from duetime.spark.airflow_operator import DuetimePipelineOperator

command, folder = sys.argv[1:]
with DAG("duetime", schedule="@daily", start_date=datetime(2026, 11, 1)) as dag:
    package = DuetimePipelineOperator(
        task_id="package", pipeline="package", arguments=["{{ params.folder }}/duetime.zip"], command=command
    )
    audit = DuetimePipelineOperator(
        task_id="audit", pipeline="audit", arguments=["--journal-only", "--driver-memory", "much"],
        env={"DUETIME_LAKE": f"{folder}/lake", "DUETIME_JOURNAL": f"{folder}/journal"}, command=command,
    )
    package >> audit
kept = DagSerialization.to_dict(dag)["dag"]
context = {"params": {"folder": folder}}
package.render_template_fields(context)
answer = package.execute(context)
try:
    audit.execute(context)
    problem = ""
except RuntimeError as error:
    problem = str(error)
print(json.dumps({"tasks": len(kept["tasks"]), "answer": answer, "problem": problem}))
"""


def test_tasks_run_pipelines_and_fail_with_them(tmp_path: Path) -> None:
    if not PYTHON.exists():
        missing_service("Airflow is not in .venv-airflow (make setup-dev)")
    command = str(Path(sys.executable).with_name("duetime"))
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "AIRFLOW_HOME": str(tmp_path / "airflow")}
    ran = subprocess.run(
        [PYTHON, "-c", DAG, command, str(tmp_path)],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout.splitlines()[-1])
    assert said["tasks"] == 2
    assert said["answer"]["file"] == str(tmp_path / "duetime.zip")
    assert (tmp_path / "duetime.zip").exists()
    assert said["problem"].startswith("duetime pipeline audit ended with ")
    assert "--driver-memory must be a size" in said["problem"]
