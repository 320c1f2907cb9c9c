"""The commands around workers, and how a task looks to the others."""

from pathlib import Path

import duetime
from duetime.wire.payload import RESTARTS
from duetime.worker.shared_counters import count, progress_name
from tests.e2e.shell import Shell


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


def test_wrong_options_are_told(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("import duetime\napp = duetime.App('memory:')\n")
    shell = Shell("", tmp_path)
    for options in (["--queue", "no queue"], ["--lease", "10ms"], ["--timeout", "soon"], ["--concurrency", "-1"]):
        ran = shell.run("work", "shop:app", *options)
        assert ran.code == 2, ran
        assert ran.err.startswith("duetime: ")
