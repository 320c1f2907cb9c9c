"""`duetime serve` as a block of a test, and its metrics as Prometheus reads them.

with serving(tmp_path, "--workers", "2") as server:
    samples = read_samples(httpx.get(server.admin + "/metrics").text)
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.plugins.processes import guard, release

COMMAND = [str(Path(sys.executable).with_name("duetime")), "serve"]
STOP_S = 90

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@dataclass(frozen=True)
class Served:
    """`api` and `admin` are URLs; `log` is what it writes to standard error."""

    process: "subprocess.Popen[str]"
    api: str
    admin: str
    log: Path

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


@contextmanager
def serving(
    folder: Path,
    *arguments: str,
    store: str = "",
    admin_port: int = 0,
    command: Sequence[str] = COMMAND,
    **environment: str,
) -> Iterator[Served]:
    """On a SQLite file in the folder unless another store is named; free ports; ends with the block."""
    log = folder / "stderr.log"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DUETIME_")}
    url = store or f"sqlite://{folder}/jobs.db"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [*command, "--store", url, "--port", "0", "--admin-port", str(admin_port), *arguments],
            cwd=folder,
            env={**kept, **environment},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    guard(process.pid)
    try:
        yield _ready(process, log)
    finally:
        process.terminate()
        process.communicate(timeout=STOP_S)
        release(process.pid)


def _ready(process: "subprocess.Popen[str]", log: Path) -> Served:
    assert process.stdout is not None
    facts: dict[str, str] = {}
    for line in process.stdout:
        label, _, value = line.strip().partition(" ")
        facts[label] = value.strip()
        if label == "stop":
            return Served(process, facts["API"], facts["admin"], log)
    raise AssertionError(f"the server did not start: {facts} {log.read_text()}")


def read_samples(text: str) -> Samples:
    """Every sample of a page of metrics, as Prometheus's own parser sees it."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for metric in text_string_to_metric_families(text)
        for sample in metric.samples
    }
