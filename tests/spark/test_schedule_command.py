"""`duetime pipeline schedule` and `package`, as a shell runs them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from duetime.cli.options import Target
from duetime.cli.pipelines.schedule import LoadChoices, default_batch
from duetime.model.job import Priority
from duetime.spark.sources import Selection
from tests.e2e.shell import Ran, Shell
from tests.spark.conftest import jobs_in

MEMBERS = """member_id,email,plan,expires_at
1,a@example.org,pro,2090-01-05 10:00:00
2,b@example.org,pro,2090-01-05 11:30:00
3,c@example.org,free,2090-01-06 10:00:00
4,,pro,2090-01-05 11:00:00
"""
SELECTION = (
    "--source", "members.csv", "--queue", "recall", "--id", "concat('recall-', member_id)",
    "--due", "expires_at - interval 3 days", "--body", "struct(member_id, email)", "--where", "plan = 'pro'",
)  # fmt: skip


class Here(Shell):
    """The shared session's JVM does not move to the shell's folder, so files are named in full."""

    def run(self, *arguments: str, **given: Any) -> Ran:
        files = ("members.csv", "members.parquet", "nowhere.csv")
        return super().run(*[str(self.folder / one) if one in files else one for one in arguments], **given)


@pytest.fixture
def shell(redis_url: str, tmp_path: Path) -> Shell:
    (tmp_path / "members.csv").write_text(MEMBERS)
    return Here(redis_url, tmp_path)


def test_a_dry_run_shows_what_would_be_and_pushes_nothing(spark: SparkSession, shell: Shell) -> None:
    [found] = shell.json("pipeline", "schedule", *SELECTION, "--dry-run")
    text = shell.ok("pipeline", "schedule", *SELECTION, "--dry-run").out

    assert (found["dry_run"], found["rows"], found["bad"]) == (True, 3, 0)
    assert [hour["jobs"] for hour in found["hours"]] == [1, 2]
    assert found["sample"][0]["id"] == "recall-1"
    assert json.loads(found["sample"][0]["body"]) == {"member_id": 1, "email": "a@example.org"}
    assert "2090-01-02T11:00:00.000Z     2" in text
    assert jobs_in(shell.url, "default", "recall") == []
    assert not (shell.folder / "lake").exists()


def test_a_table_becomes_jobs_and_a_second_run_adds_nothing(spark: SparkSession, shell: Shell) -> None:
    [first] = shell.json("pipeline", "schedule", *SELECTION)
    [again] = shell.json("pipeline", "schedule", *SELECTION)
    text = shell.ok("pipeline", "schedule", *SELECTION).out

    assert (first["rows"], first["accepted"], first["queue"]) == (3, 3, "default/recall")
    assert again == first | {"was_done": True}
    assert f"the batch {first['batch']} was done 20" in text
    assert "with 3 accepted; the source was not read now and nothing was pushed" in " ".join(text.split())
    assert first["batch"].startswith("recall-")
    assert [job.id for job in jobs_in(shell.url, "default", "recall")] == ["recall-1", "recall-4", "recall-2"]

    # Another selection is another batch, on the same day too.
    [other] = shell.json("pipeline", "schedule", *SELECTION[:-1], "plan = 'free'")
    assert other["batch"] != first["batch"]
    assert other["accepted"] == 1


def test_a_batch_that_is_done_is_told_without_java(spark: SparkSession, shell: Shell) -> None:
    selection = [str(shell.folder / one) if one == "members.csv" else one for one in SELECTION]
    asked = ("pipeline", "schedule", *selection, "--batch", "friday", "--lake", "lake", "--json")
    nowhere = {"JAVA_HOME": str(shell.folder), "PATH": str(shell.folder)}
    first = shell.ok(*asked).document
    again = shell.spawn(*asked, **nowhere)
    assert (again.code, again.err) == (0, "")
    assert again.document == first | {"was_done": True}
    # Where something differs, Spark has to look.
    other = shell.spawn(*asked, "--ttl", "1h", **nowhere)
    assert "Java" in other.error["message"]


def test_the_same_relative_name_in_another_folder_is_another_source(
    spark: SparkSession, shell: Shell, tmp_path: Path
) -> None:
    """Without Java, only a batch that is known to be done is answered."""
    here, elsewhere = Shell(shell.url, tmp_path), Shell(shell.url, tmp_path / "elsewhere")
    elsewhere.folder.mkdir()
    (elsewhere.folder / "members.csv").write_text(MEMBERS)
    nowhere = {"JAVA_HOME": str(tmp_path), "PATH": str(tmp_path)}
    asked = ("pipeline", "schedule", *SELECTION, "--batch", "friday", "--lake", str(tmp_path / "lake"), "--json")
    shell.ok(*asked)
    assert here.spawn(*asked, **nowhere).document["was_done"]
    assert "Java" in elsewhere.spawn(*asked, **nowhere).error["message"]

    # Where Spark looks, it says what differs.
    named = [str(elsewhere.folder / one) if one == "members.csv" else one for one in asked]
    assert shell.run(*named).error["code"] == "batch_conflict"


def test_only_local_paths_are_taken_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def described(folder: str, **fields: str) -> str:
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        return Selection(**{"body": "b", **fields}).describe()

    for source in ("members.csv", "data/members.parquet", "data/"):
        assert described("here", source=source) != described("there", source=source)
        assert described("here", source=source) == described("there", source=str(tmp_path / "here" / source))
    assert described("here", source="members", format="csv") != described("there", source="members", format="csv")
    elsewhere = (
        "members",
        "select * from members",
        "jdbc:postgresql://db/crm",
        "s3a://crm/m.csv",
        "file:/m.csv",
        "/m.csv",
    )
    for source in elsewhere:
        assert described("here", source=source) == described("there", source=source)


def test_bad_rows_end_it_with_their_reasons_or_are_put_aside(spark: SparkSession, shell: Shell) -> None:
    arguments = ("pipeline", "schedule", "--source", "members.csv", "--queue", "recall", "--body", "email")
    refused = shell.run(*arguments, "--json")
    assert refused.code == 2
    assert refused.error["code"] == "bad_rows"
    assert refused.error["fields"]["reasons"] == {"the body is null": 1}

    done = shell.ok(*arguments, "--bad-rows", "skip").out
    assert "3 accepted, 1 bad rows written to lake/batches/recall-" in done


def test_a_value_that_an_expression_cannot_read_is_a_bad_row(spark: SparkSession, shell: Shell) -> None:
    (shell.folder / "members.csv").write_text("member_id,ends\n1,2090-01-05 10:00:00\n2,soon\n3,\n4,later\n")
    arguments = ("--source", "members.csv", "--queue", "recall", "--body", "struct(member_id)")
    asked = ("pipeline", "schedule", *arguments, "--id", "string(member_id)", "--due", "to_timestamp(ends)")
    refused = shell.run(*asked, "--json")
    problem = "--due cannot be evaluated: to_timestamp(ends)"
    assert (refused.code, refused.error["code"]) == (2, "bad_rows")
    assert refused.error["fields"]["reasons"] == {problem: 2}
    assert refused.error["fields"]["examples"] == ['{"member_id":2,"ends":"soon"}']
    assert 'for example the row {"member_id":2,"ends":"soon"}, the ids \'2\', \'4\'' in refused.error["message"]
    assert jobs_in(shell.url, "default", "recall") == []

    [done] = shell.json(*asked, "--bad-rows", "skip")
    assert (done["accepted"], done["bad"]) == (2, 2)
    assert {job.id for job in jobs_in(shell.url, "default", "recall")} == {"1", "3"}, "null is due now"
    rejected = spark.read.parquet(str(shell.folder / done["rejected"])).orderBy("id").collect()
    assert [(row["id"], row["reason"]) for row in rejected] == [("2", problem), ("4", problem)]
    assert json.loads(rejected[1]["body"]) == {"member_id": 4, "ends": "later"}


@pytest.mark.parametrize(
    ("option", "expression"),
    [("--where", "int(plan) > 0"), ("--id", "1 div (member_id - 2)"), ("--body", "map('a', int(email))")],
)
def test_every_expression_that_fails_is_named(spark: SparkSession, shell: Shell, option: str, expression: str) -> None:
    given = {"--body": "email", option: expression}
    arguments = [word for pair in given.items() for word in pair]
    where = ("--source", "members.csv", "--queue", "recall", "--dry-run")
    [found] = shell.json("pipeline", "schedule", *where, *arguments)
    assert found["reasons"][f"{option} cannot be evaluated: {expression}"] == {"--id": 1, "--body": 3}.get(option, 4)


def test_a_row_may_have_its_own_queue_and_options(spark: SparkSession, shell: Shell) -> None:
    columns = {
        "queue": "if(plan = 'free', 'slow', null)",
        "priority": "if(plan = 'pro', 'high', 'low')",
        "tries": "member_id",
        "ttl": "interval 9 hours",
        "delay": "member_id * 60",
        "attributes": "map('plan', plan)",
    }
    given = [word for name, text in columns.items() for word in ("--column", f"{name}={text}")]
    where = ("--source", "members.csv", "--queue", "recall", "--id", "member_id", "--body", "plan")
    [done] = shell.json("pipeline", "schedule", *where, *given)
    assert done["accepted"] == 4
    [slow] = jobs_in(shell.url, "default", "slow")
    fast = jobs_in(shell.url, "default", "recall")
    assert [(job.id, job.tries, job.priority) for job in fast] == [(one, int(one), Priority.HIGH) for one in "124"]
    assert (slow.id, slow.priority, dict(slow.attributes)) == ("3", Priority.LOW, {"plan": "free"})
    assert slow.expires_at - slow.born == 9 * 3_600_000
    assert abs(slow.due_at - slow.born - 180_000) < 60_000
    refused = shell.run("pipeline", "schedule", *where, "--column", "colour=1")
    assert (
        "--column must name one of delay, queue, ttl, tries, priority, attributes, if_exists, got 'colour'"
        in refused.err
    )


def test_a_source_without_rows_is_named_and_leaves_no_batch(spark: SparkSession, shell: Shell) -> None:
    asked = ("pipeline", "schedule", *SELECTION[:-1], "plan = 'gold'", "--batch", "gold")
    said = shell.ok(*asked).out
    assert "the source has no rows, or --where leaves none; nothing was pushed" in " ".join(said.split())
    with (shell.folder / "members.csv").open("a") as members:
        members.write("5,e@example.org,gold,2090-01-05 10:00:00\n")
    [done] = shell.json(*asked)
    assert (done["accepted"], done["was_done"]) == (1, False)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--source", "members.csv", "--body", "emial"), "emial"),
        (("--source", "members.csv", "--body", "email("), "PARSE_SYNTAX_ERROR"),
        (("--source", "nowhere.csv", "--body", "email"), "PATH_NOT_FOUND"),
        (
            ("--source", "members.csv", "--body", "email", "--priority", "urgent"),
            "must be high, normal or low",
        ),
        (("--source", "members.csv", "--body", "email", "--bad-rows", "maybe"), "must be one of fail, skip"),
    ],
)
def test_what_cannot_be_right_is_said_in_one_line(
    spark: SparkSession, shell: Shell, arguments: tuple[str, ...], problem: str
) -> None:
    ran = shell.run("pipeline", "schedule", "--queue", "recall", *arguments)
    assert ran.code == 2
    assert problem in ran.err.splitlines()[-1]
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("source", ["select member_id as email from members", "members", "members.parquet"])
def test_sources_of_other_kinds(spark: SparkSession, shell: Shell, source: str) -> None:
    spark.sql("select 'a' member_id, 'b' email").createOrReplaceTempView("members")
    spark.table("members").write.parquet(str(shell.folder / "members.parquet"))
    [found] = shell.json("pipeline", "schedule", "--source", source, "--queue", "q", "--body", "email", "--dry-run")
    assert found["rows"] == 1


def test_the_archive_holds_what_an_executor_needs(shell: Shell) -> None:
    [written] = shell.json("pipeline", "package", "out/duetime.zip")
    # In an interpreter that sees the archive before the installed code.
    program = """
import sys
sys.path.insert(0, sys.argv[1])
import duetime, pyspark_duetime
from duetime.spark.load.push_files import FilePusher
from duetime.stores.redis.scripts import sources
from duetime.stores.sqlite.store import SqliteStore
assert duetime.__file__.startswith(sys.argv[1]), duetime.__file__
assert "push" in sources()
print(pyspark_duetime.DefaultSource.name())
"""
    archive = str(shell.folder / "out" / "duetime.zip")
    ran = subprocess.run([sys.executable, "-c", program, archive], capture_output=True, text=True, check=False)

    assert (ran.returncode, ran.stdout.strip()) == (0, "duetime"), ran.stderr
    assert written["files"] > 100


def test_the_default_name_of_a_batch_tells_stores_and_namespaces_apart() -> None:
    selection = Selection("members", "body")
    targets = [Target(url="redis://a"), Target(url="redis://b"), Target(url="redis://a", namespace="crm")]
    names = {default_batch("recall", selection, LoadChoices(), target) for target in targets}
    assert len(names) == 3
    secret = Target(url="redis://user:secret@a")
    other = Target(url="redis://user:changed@a")
    assert default_batch("recall", selection, LoadChoices(), secret) == default_batch(
        "recall", selection, LoadChoices(), other
    ), "a new password is not another store"
