"""The commands around workers, and how a task looks to the others."""

import subprocess
from pathlib import Path

import duetime
from duetime.wire.payload import PAUSED_TASKS, RESTARTS
from duetime.worker.shared_counters import count, progress_name
from tests.e2e.shell import Shell, program
from tests.plugins.processes import guard, release


def test_restart_and_progress(tmp_path: Path) -> None:
    shell = Shell(f"sqlite://{tmp_path / 'jobs.db'}", tmp_path)
    with duetime.connect(shell.url) as client:
        queue = client.queue("mail")
        client.send(count("default", progress_name(queue.name, "j"), 40))
        assert shell.json("worker", "progress", "mail", "j")[0]["percent"] == 40
        assert shell.ok("worker", "progress", "mail", "other").out == "0 %\n"
        assert shell.json("worker", "restart") == [{"namespace": "default", "restarts": 1}]
        assert "will exit after their jobs" in shell.ok("worker", "restart").out
        assert client.send(count("default", RESTARTS)) == 2
        assert client.send(count("other", RESTARTS)) == 0


def test_a_task_is_paused_once_and_resumed_immediately(tmp_path: Path) -> None:
    shell = Shell(f"sqlite://{tmp_path / 'jobs.db'}", tmp_path)
    for _ in range(2):
        [paused] = shell.json("worker", "pause-task", "shop.send")
        assert paused == {"namespace": "default", "task": "shop.send", "paused": True}
    with duetime.connect(shell.url) as client:
        assert client.send(count("default", PAUSED_TASKS)) == 1
        for _ in range(2):
            assert shell.ok("worker", "resume-task", "shop.send").out == "shop.send is resumed\n"
        assert client.send(count("default", PAUSED_TASKS)) == 0


def test_batches_are_listed_shifted_paused_and_cancelled(tmp_path: Path) -> None:
    shell = Shell(f"sqlite://{tmp_path / 'jobs.db'}", tmp_path)
    shell.ok("migrate")
    assert shell.json("batch", "list") == []
    with duetime.App(shell.url) as app, duetime.connect(shell.url) as client:
        batch = app.batch("news\x1b[2Jletter", queue="mail").open()
        queue = client.queue(batch.queue)
        queue.push("now")
        due_at = queue.push("later", delay="1h", id="later").due_at
        [listed] = shell.json("batch", "list")
        assert (listed["id"], listed["state"], listed["waiting"], listed["percent"]) == (batch.id, "open", 2, 0)
        assert "\x1b" not in shell.ok("batch", "list").out + shell.ok("batch", "show", batch.id).out
        assert shell.json("batch", "shift", batch.id, "30m", "--earlier")[0]["moved"] == 2
        assert queue.get("later").due_at == due_at - 1_800_000
        assert shell.json("batch", "pause", batch.id)[0]["paused"]
        assert queue.reserve() == []
        assert not shell.json("batch", "resume", batch.id)[0]["paused"]
        [job] = queue.reserve()
        job.ack()
        assert shell.run("batch", "cancel", batch.id).code != 0  # it asks, and nobody answers
        [cancelled] = shell.json("batch", "cancel", batch.id, "--yes")
        assert (cancelled["state"], cancelled["done"], cancelled["cancelled"]) == ("cancelled", 1, 1)
        assert shell.run("batch", "show", "mail.batch-no").code != 0


def test_a_task_is_shown_with_its_arguments(tmp_path: Path) -> None:
    shell = Shell(f"sqlite://{tmp_path / 'jobs.db'}", tmp_path)
    with duetime.App(shell.url) as app:

        @app.task(name="shop.send", queue="mail")
        def send(to: str, n: int) -> None: ...

        send.delay("ann", 3)
        send.delay("\x1b[2J\u009b", 3)

    shown = shell.ok("list", "mail").out
    assert 'shop.send(to="ann", n=3)' in shown
    assert "\x1b" not in shown
    assert "\u009b" not in shown


def test_wrong_options_are_refused(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("import duetime\napp = duetime.App('memory:')\n")
    shell = Shell("", tmp_path)
    for options in (
        ["--queue", "no queue"],
        ["--lease", "10ms"],
        ["--timeout", "soon"],
        ["--concurrency", "-1"],
        ["-c", "3..2"],
        ["-c", "many"],
        ["--tries", "-1"],
        ["--max-jobs", "-1"],
        ["--memory", "nan"],
    ):
        ran = shell.run("work", "shop:app", *options)
        assert ran.code == 2, ran
        assert ran.err.startswith("duetime: ")
    stored = Shell(f"sqlite:{tmp_path}/jobs.db", tmp_path)
    stored.ok("migrate")
    for command in ("output", "progress"):
        assert stored.run("worker", command, "mail", "").code == 2
    quiet = stored.ok("worker", "output", "mail", "j")
    assert (quiet.out, quiet.err) == ("", "no output of mail/j: it does not run, or has logged nothing\n")


RELOADING = """
import duetime
app = duetime.App("{url}")

@app.task
def tell() -> None:
    print("{word}", flush=True)
"""


def test_a_worker_starts_anew_when_its_program_changes(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path / 'jobs.db'}"
    shell, place = Shell(url, tmp_path), tmp_path / "shop.py"
    place.write_text(RELOADING.format(url=url, word="first"))
    process = subprocess.Popen(
        [*program(), "work", "shop:app", "--pool", "threads", "--reload"],
        cwd=tmp_path,
        env=shell.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    guard(process.pid)
    try:
        assert process.stdout is not None
        with duetime.App(url) as app:

            @app.task(name="shop.tell")
            def tell() -> None: ...

            tell.delay()
            assert any(line == "first\n" for line in process.stdout)
            place.write_text("this is no Python")
            assert any("shop.py changed" in line for line in process.stdout)
            assert any("SyntaxError" in line for line in process.stdout)
            place.write_text(RELOADING.format(url=url, word="second"))
            tell.delay()
            assert any(line == "second\n" for line in process.stdout)
    finally:
        process.terminate()
        rest, _ = process.communicate(timeout=90)
        release(process.pid)
    assert process.returncode == 0, rest
