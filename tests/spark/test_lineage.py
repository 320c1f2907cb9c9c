"""OpenLineage events of a round, sent by OpenLineage's own client to a server that keeps what it gets."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from openlineage.client import OpenLineageClient
from pyspark.sql import SparkSession

from duetime.spark.lake.lake import Lake
from duetime.spark.openlineage_events import LineageEvents, dataset_name
from duetime.spark.rounds import RoundPlan, run_round
from tests.plugins.ports import find_free_port
from tests.spark.history import FATES, a_day

START = 1_790_000_000_000


class Receiver:
    """A server for the events, at `url`."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        received = self.events

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(201)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def told(self) -> list[tuple[str, str]]:
        return [(event["job"]["name"].removeprefix("duetime."), event["eventType"]) for event in self.events]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def client_of(url: str) -> OpenLineageClient:
    return OpenLineageClient(config={"transport": {"type": "http", "url": url, "retry": {"total": 0}}})


def watch(lake: Lake, plan: RoundPlan, url: str, complaints: list[str]) -> LineageEvents:
    return LineageEvents(lake, plan, namespace="crm", complain=complaints.append, client=client_of(url))


def test_each_step_tells_its_datasets_and_rows(spark: SparkSession, tmp_path: Path, receiver: Receiver) -> None:
    a_day(tmp_path / "journal", START, rounds=1)
    lake, complaints = Lake(spark, str(tmp_path / "lake")), list[str]()
    plan = RoundPlan(str(tmp_path / "journal"), None)
    assert run_round(lake, plan, watcher=watch(lake, plan, receiver.url, complaints)).ok
    steps = ["ingest", "lifecycle", "stats", "audit", "report"]
    expected = [(step, word) for step in steps for word in ("START", "COMPLETE")]
    assert (receiver.told(), complaints) == ([("round", "START"), *expected, ("round", "COMPLETE")], [])

    by_step = {event["job"]["name"]: event for event in receiver.events if event["eventType"] == "COMPLETE"}
    ingest, lifecycle, stats = (by_step[f"duetime.{name}"] for name in ("ingest", "lifecycle", "stats"))
    assert [one["name"] for one in ingest["inputs"]] == [str(tmp_path / "journal")]
    assert [(one["namespace"], one["name"]) for one in ingest["outputs"]] == [("file", str(tmp_path / "lake/events"))]
    assert [one["name"] for one in stats["inputs"]] == [str(tmp_path / "lake" / name) for name in ("events", "jobs")]
    rows = [one["outputs"][0]["outputFacets"]["outputStatistics"] for one in (ingest, lifecycle, stats)]
    assert [one["rowCount"] for one in rows] == [table.read().count() for table in (lake.events, lake.jobs, lake.stats)]
    assert rows[1]["rowCount"] > len(FATES)
    assert all(one["size"] > 0 and one["fileCount"] > 0 for one in rows)
    started, *_ = receiver.events
    assert ingest["run"]["facets"]["parent"]["run"]["runId"] == started["run"]["runId"]
    assert len({event["run"]["runId"] for event in receiver.events}) == len(steps) + 1


def test_a_step_that_fails_says_why(spark: SparkSession, tmp_path: Path, receiver: Receiver) -> None:
    lake, plan = Lake(spark, str(tmp_path / "lake")), RoundPlan(str(tmp_path / "nowhere"), None)
    assert not run_round(lake, plan, watcher=watch(lake, plan, receiver.url, [])).ok
    assert receiver.told() == [("round", "START"), ("ingest", "START"), ("ingest", "FAIL"), ("round", "FAIL")]
    assert "there is no journal" in receiver.events[2]["run"]["facets"]["errorMessage"]["message"]


def test_a_receiver_that_is_away_stops_nothing(spark: SparkSession, tmp_path: Path) -> None:
    lake, plan, complaints = Lake(spark, str(tmp_path)), RoundPlan(str(tmp_path), None), list[str]()
    watcher = watch(lake, plan, f"http://127.0.0.1:{find_free_port()}", complaints)
    watcher.began("ingest")
    assert complaints[0].startswith("the OpenLineage event START of ingest was not sent: ")


def test_names_of_datasets_have_no_secrets() -> None:
    assert dataset_name("s3a://logs/duetime/") == ("s3://logs", "duetime")
    assert dataset_name("hdfs://name:9000/lake/events") == ("hdfs://name:9000", "/lake/events")
    assert dataset_name("redis://user:secret@cache:6379/0?ca=x") == ("redis://cache:6379", "/0")
    assert dataset_name("sqlite:///srv/jobs.db?synchronous=OFF") == ("sqlite", "/srv/jobs.db")
    assert dataset_name("/srv/lake") == ("file", "/srv/lake")
