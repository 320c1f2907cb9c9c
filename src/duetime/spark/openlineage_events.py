"""OpenLineage: each step of `duetime pipeline run` as a run with its input and output datasets and row counts.

A round is a run of the job `duetime.round`, its steps are runs of `duetime.ingest`, `duetime.lifecycle` and so on, with
the round as their parent. START is sent when a step begins, then COMPLETE, or FAIL with the error. Where the events go
is OpenLineage's own configuration (OPENLINEAGE_URL, openlineage.yml ...). Events that cannot be sent are complained
about and never end a round. Needs the extra `duetime[openlineage]`. Runs on the driver.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from urllib.parse import urlsplit

from duetime import __version__
from duetime.model.errors import InvalidSettings
from duetime.spark.lake.lake import Lake, Table
from duetime.spark.rounds import WHOLE, RoundPlan

try:
    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
    from openlineage.client.facet_v2 import (
        OutputDatasetFacet,
        RunFacet,
        error_message_run,
        output_statistics_output_dataset,
        parent_run,
    )
    from openlineage.client.uuid import generate_new_uuid
except ModuleNotFoundError as missing:
    raise InvalidSettings.lacks("lineage", "openlineage", missing) from None

PRODUCER = f"urn:duetime:{__version__}"
READS: Mapping[str, Sequence[str]] = {
    "ingest": ["journal"],
    "lifecycle": ["events"],
    "stats": ["events", "jobs"],
    "audit": ["journal", "store", "jobs"],
    "report": ["stats", "jobs", "events"],
}
WRITES: Mapping[str, str] = {"ingest": "events", "lifecycle": "jobs", "stats": "stats"}


class LineageEvents:
    """A watcher of rounds. `namespace` is that of the jobs; `complain` hears why an event could not be sent."""

    def __init__(
        self, lake: Lake, plan: RoundPlan, *, namespace: str, complain: Callable[[str], None], client: OpenLineageClient
    ) -> None:
        self._lake, self._plan, self._namespace, self._complain, self._client = lake, plan, namespace, complain, client
        self._runs: dict[str, str] = {}
        self._versions: dict[str, int] = {}

    def began(self, step: str) -> None:
        self._runs[step] = str(generate_new_uuid())
        if table := self._table(step):
            self._versions[step] = table.manifest().version
        self._send(RunState.START, step)

    def ended(self, step: str, numbers: Mapping[str, int]) -> None:
        self._send(RunState.COMPLETE, step, numbers=numbers)

    def failed(self, step: str, problem: str) -> None:
        self._send(
            RunState.FAIL, step, facets={"errorMessage": error_message_run.ErrorMessageRunFacet(problem, "python")}
        )

    def _send(
        self,
        state: RunState,
        step: str,
        *,
        numbers: Mapping[str, int] | None = None,
        facets: Mapping[str, RunFacet] | None = None,
    ) -> None:
        known = dict(facets or {})
        if step != WHOLE and (parent := self._runs.get(WHOLE)):
            job = parent_run.Job(self._namespace, f"duetime.{WHOLE}")
            known["parent"] = parent_run.ParentRunFacet(parent_run.Run(parent), job)
        event = RunEvent(
            eventType=state,
            eventTime=datetime.now(UTC).isoformat(),
            run=Run(self._runs[step], known),
            job=Job(self._namespace, f"duetime.{step}"),
            inputs=[InputDataset(*dataset_name(place)) for place in self._inputs(step)],
            outputs=self._outputs(step, numbers),
            producer=PRODUCER,
        )
        try:
            self._client.emit(event)
        except Exception as error:  # each transport raises errors of its own library
            self._complain(f"the OpenLineage event {state.name} of {step} was not sent: {error}")

    def _inputs(self, step: str) -> list[str]:
        compared = self._plan.compared
        places = {"journal": self._lake.files.home(self._plan.journal), "store": compared.url if compared else ""}
        found = [places.get(name, f"{self._lake.folder}/{name}") for name in READS.get(step, ())]
        return [place for place in found if place]

    def _outputs(self, step: str, numbers: Mapping[str, int] | None) -> list[OutputDataset]:
        if step == "report" and self._plan.report:
            return [OutputDataset(*dataset_name(f"file://{self._plan.report.absolute()}"))]
        if not (table := self._table(step)):
            return []
        name, place = dataset_name(table.home)
        if numbers is None:
            return [OutputDataset(name, place)]
        return [OutputDataset(name, place, {"outputStatistics": self._statistics(step, table)})]

    def _statistics(self, step: str, table: Table) -> OutputDatasetFacet:
        manifest, before = table.manifest(), self._versions[step]
        fresh = [file for file in manifest.files if file.since > before]
        rows = table.read(manifest=manifest, only=lambda file: file.since > before).count()
        return output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            rows, sum(file.bytes for file in fresh), len(fresh)
        )

    def _table(self, step: str) -> Table | None:
        tables = {"events": self._lake.events, "jobs": self._lake.jobs, "stats": self._lake.stats}
        return tables[WRITES[step]] if step in WRITES else None


def dataset_name(place: str) -> tuple[str, str]:
    """Namespace and name as OpenLineage writes them, without user, password and options."""
    parts = urlsplit(place)
    path = parts.path.rstrip("/") or "/"
    if parts.scheme in ("", "file"):
        return "file", path
    if parts.scheme in ("s3", "s3a", "s3n"):
        return f"s3://{parts.netloc}", path.lstrip("/") or "/"
    if parts.scheme.startswith("sqlite"):
        return "sqlite", path
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}", path
