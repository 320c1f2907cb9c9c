"""The complete lines of segments that are still being written, each read once, however often an audit looks.

An audit that waits for a node looks every second, and a segment may have 64 MiB. So each look reads from where the one
before it ended, and keeps what it found in files of its own. Runs on the driver; executors check the lines.
"""

from collections.abc import Collection
from pathlib import Path

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from duetime.journal.segments import open_name, parse
from duetime.spark.ingest import transform as ingest
from duetime.spark.ingest.about import DamagedLines
from duetime.spark.ingest.run import find_damage
from duetime.spark.lake.files import Files
from duetime.spark.lake.lake import Lake
from duetime.spark.schemas import EVENTS, frame


class OpenSegments:
    """`folder` is for the copies. `read_bytes` counts what was read of the journal."""

    def __init__(self, lake: Lake, files: Files, journal: str, folder: str) -> None:
        self._lake, self._files, self._journal, self._folder = lake, files, journal, folder
        self._places: dict[str, tuple[int, int]] = {}  # by path: the next byte and the number of its entry
        self._looks = 0
        self._kept: list[str] = []
        self._copies: list[str] = []
        self.damage: list[DamagedLines] = []
        self.read_bytes = 0

    def copy(self, ended: Collection[str]) -> dict[str, int]:
        """Copy the lines that are new; answers per node the last entry that a sealed segment's name speaks of.

        `ended` are nodes that write no more; they are not looked at.
        """
        self._looks += 1
        lasts: dict[str, int] = {}
        for node in self._files.list(self._journal):
            for file in self._files.list(node.path) if node.is_folder and node.name not in ended else []:
                if (segment := parse(Path(file.name))) is None:
                    continue
                if segment.is_open:
                    self._copy(node.name, file.path, segment.first)
                else:
                    lasts[node.name] = max(segment.last, lasts.get(node.name, 0))
        return lasts

    def _copy(self, node: str, path: str, first: int) -> None:
        start, seq = self._places.get(path, (0, first))
        try:
            content = self._files.read(path, start)
        except FileNotFoundError:  # sealed since it was listed; the ingest that follows reads it
            return
        complete = content[: content.rfind(b"\n") + 1]  # the last line may not be complete yet
        if not complete:
            return
        # Named after its first entry, so that a damaged line is known by the number of its entry.
        self._copies.append(f"{self._folder}/{self._looks:06d}/{node}/{open_name(seq)}")
        self._lake.files.create(self._copies[-1], complete)
        self._places[path] = start + len(complete), seq + complete.count(b"\n")
        self.read_bytes += len(complete)

    def events(self) -> DataFrame:
        """EVENTS of all copies, those of earlier looks included."""
        if self._copies:
            aside = f"{self._folder}/{self._looks:06d}.parquet"
            lines = self._lake.spark.read.format("text").option("lineSep", "\n").load(self._copies)
            seen = Observation()
            found = lines.select("value", F.col("_metadata.file_path").alias("file")).transform(ingest.read_lines)
            # Written before anything is left out: Spark observes nothing in a query that it finds to be empty half way.
            found.observe(seen, *ingest.damage_seen()).transform(ingest.good_events).write.parquet(aside)
            self.damage += find_damage(self._lake, seen.get["bad_files"])[0]
            self._kept.append(aside)
            self._copies = []
        if not self._kept:
            return frame(self._lake.spark, [], EVENTS)
        return self._lake.spark.read.schema(EVENTS).parquet(*self._kept)
