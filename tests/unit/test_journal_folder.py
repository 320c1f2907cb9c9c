"""The setting journal is a folder of this machine: a path or a file: URI; anything else is refused before a write."""

import socket
from pathlib import Path

import pytest
import typer

from duetime.cli.pipelines.options import local_file
from duetime.journal.options import embedded_options, local_folder, options_of
from duetime.journal.registration import RegisteredNode
from duetime.model.errors import InvalidSettings
from duetime.model.settings import load
from duetime.spark.load.batch_journal import with_journal
from duetime.spark.load.options import read_options

ELSEWHERE = ["s3a://logs/duetime", "hdfs:///logs", "s3://logs", "abfss://a@b.core/x"]


@pytest.mark.parametrize("text", ["file:///var/lib/journal", "file:/var/lib/journal", "/var/lib/journal"])
def test_a_file_uri_is_its_path(text: str) -> None:
    assert local_folder(text) == Path("/var/lib/journal")


@pytest.mark.parametrize("text", ["journal", "C:odd", "a:b", "dir/s3a:x"])
def test_a_name_with_a_colon_is_a_name(text: str) -> None:
    assert local_folder(text) == Path(text).absolute()


@pytest.mark.parametrize("text", ELSEWHERE)
def test_another_file_system_is_refused(text: str) -> None:
    with pytest.raises(InvalidSettings, match=f"journal must be a folder of this machine, got {text}"):
        options_of(load(flags={"journal": text}, environment={}, file={}))
    with pytest.raises(InvalidSettings, match="journal_ship_to"):
        embedded_options("redis://x", text, {})


async def test_a_batch_journal_elsewhere_is_refused_before_the_pool_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = read_options({"url": f"sqlite://{tmp_path / 'jobs.db'}", "journal": "s3a://logs/duetime"})
    with pytest.raises(InvalidSettings, match="s3a://logs/duetime"):
        await with_journal(options)
    assert not (tmp_path / "s3a:").exists()

    here = read_options({"url": f"sqlite://{tmp_path / 'jobs.db'}", "journal": f"file://{tmp_path}/entries"})
    assert (await with_journal(here)).journal == str(tmp_path / "entries")


def test_a_file_that_a_pipeline_writes_here_has_no_other_place() -> None:
    assert local_file("file:///tmp/report.html") == Path("/tmp/report.html")
    assert local_file("report.html") == Path("report.html")
    with pytest.raises(typer.BadParameter, match="written on this machine"):
        local_file("s3a://pages/report.html")


def test_a_program_follows_a_node_that_still_writes_before_one_that_ended_later(tmp_path: Path) -> None:
    server, ended, host = tmp_path / "server", tmp_path / "ended", socket.gethostname()
    (server / "a").mkdir(parents=True)
    (ended / "b").mkdir(parents=True)
    nodes = {
        "a": RegisteredNode(1, host=host, folder=str(server)),
        "b": RegisteredNode(2, last=3, host=host, folder=str(ended)),
    }

    options = embedded_options("redis://x", None, {}, nodes=nodes)
    assert options is not None
    assert options.folder == server

    only_ended = embedded_options("redis://x", None, {}, nodes={"b": nodes["b"]})
    assert only_ended is not None
    assert only_ended.folder == ended
