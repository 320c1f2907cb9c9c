"""An Airflow operator that runs a pipeline as a process of its own.

Airflow's process needs neither Spark nor Java: `duetime` may be in another environment. The task fails if the command
does, for example an audit that is not sound. What the command answers with --json is what the operator returns, so
other tasks get it as XCom. Needs the extra `duetime[airflow]`; Airflow 3.
"""
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUntypedBaseClass=false, reportUnknownArgumentType=false
# Airflow has a hundred packages of its own, so it is not in the environment in which types are checked.

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import BaseOperator

STOP_S = 30


class DuetimePipelineOperator(BaseOperator):
    """`duetime pipeline PIPELINE ARGUMENTS --json`, for example `("audit", arguments=["--url", "redis://cache"])`.

    `env` is added to the environment of the process: DUETIME_LAKE, DUETIME_JOURNAL, DUETIME_TOKEN ... Secrets belong
    there and not into `arguments`, which are logged.
    """

    template_fields: Sequence[str] = ("pipeline", "arguments", "env")
    ui_color = "#d7e9f7"

    def __init__(
        self,
        *,
        pipeline: str,
        arguments: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        command: str = "duetime",
        **operator: Any,
    ) -> None:
        super().__init__(**operator)
        self.pipeline, self.arguments, self.env, self.command = pipeline, list(arguments), dict(env or {}), command
        self._process: subprocess.Popen[str] | None = None

    def execute(self, context: Any) -> Any:
        """The answer: a document, or a list of them where the command writes one per line."""
        line = [self.command, "pipeline", self.pipeline, *self.arguments, "--json"]
        self.log.info("running %s", line)
        self._process = subprocess.Popen(
            line, env={**os.environ, **self.env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        answer, complaint = self._process.communicate()
        for said in complaint.splitlines():
            self.log.info("%s", said)
        documents = [json.loads(text) for text in answer.splitlines() if text.strip()]
        if self._process.returncode:
            last = complaint.strip().splitlines()[-1:] or [answer.strip()[-500:]]
            raise RuntimeError(f"duetime pipeline {self.pipeline} ended with {self._process.returncode}: {last[0]}")
        return documents[0] if len(documents) == 1 else documents

    def on_kill(self) -> None:
        """Airflow ends the task: a pipeline that is interrupted leaves the lake as it was."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
