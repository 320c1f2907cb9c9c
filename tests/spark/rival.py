"""Two processes that publish to one table at the same moment, again and again.

`publish_rounds` is one side. Run as a program this file is the other one: `python rival.py LAKE MEETING ROUNDS CONF`,
with Spark's settings as JSON. They meet before each publication: each makes a file in the folder MEETING and waits for
the other's.
"""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from duetime.spark.lake.lake import Lake, PublishConflict
from duetime.spark.session import open_session
from tests.plugins.processes import guard, release
from tests.plugins.until import until
from tests.spark.frames import events

START_S = 240


def publish_rounds(lake: Lake, name: str, meeting: Path, rounds: int) -> int:
    """Publish one row a round; answers how often the other side was first."""
    conflicts, others = 0, {"mine": "other", "other": "mine"}
    for number in range(rounds):
        rows = events(lake.spark, {"event": "accepted", "node": name, "seq": number})
        with lake.events.stage(rows) as staged:
            after = lake.events.manifest()
            (meeting / f"{name}-{number}").touch()
            _await(meeting / f"{others[name]}-{number}")
            while True:
                try:
                    lake.events.publish(staged, after=after, about={})
                    break
                except PublishConflict:
                    conflicts, after = conflicts + 1, lake.events.manifest()
            # Both sides have published before either of them reads the next manifest.
            (meeting / f"{name}-{number}-done").touch()
            _await(meeting / f"{others[name]}-{number}-done")
    return conflicts


def _await(path: Path) -> None:
    asyncio.run(until(path.exists, deadline_s=START_S))


def run_beside(lake: Lake, meeting: Path, rounds: int, conf: dict[str, str]) -> tuple[int, int]:
    """Publish beside a second process; answers how often each side was second."""
    meeting.mkdir()
    command = [sys.executable, "-m", "tests.spark.rival", lake.folder, str(meeting), str(rounds), json.dumps(conf)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    guard(process.pid)
    try:
        mine = publish_rounds(lake, "mine", meeting, rounds)
        said, complaint = process.communicate(timeout=START_S)
        assert process.returncode == 0, complaint[-2000:]
    finally:
        process.kill()
        process.wait()
        release(process.pid)
    return mine, int(said.split()[-1])


def main(lake: str, meeting: str, rounds: str, conf: str) -> None:
    given: dict[str, Any] = json.loads(conf)
    spark = open_session("rival", master="local[1]", conf=given)
    print(publish_rounds(Lake(spark, lake), "other", Path(meeting), int(rounds)))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
