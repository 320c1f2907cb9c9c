"""A program with a task that runs every second. SAMPLE_MISSED says what becomes of missed runs."""

import os
from pathlib import Path

import duetime

app = duetime.App()
LOG = Path(os.environ["SAMPLE_LOG"])


@app.every("1s", missed=os.environ.get("SAMPLE_MISSED", "last"), name="beat")  # type: ignore[arg-type]
@app.task(queue="beats", tries=3)
def beat() -> None:
    with LOG.open("a") as file:
        file.write(f'{{"kind": "beat", "id": "{duetime.current_job().id}"}}\n')
