"""`duetime schedule ...` on a store and through a server."""

import asyncio

import duetime
from duetime.worker.recurring import Scheduler
from tests.e2e.conftest import Serve
from tests.e2e.shell import Shell
from tests.plugins.until import until


def life_of_a_schedule(shell: Shell) -> None:
    assert "no schedules in default" in shell.ok("schedule", "list").err
    rates = ("schedule", "add", "rates", "--every", "1h", "--queue", "rates", "--body", "refresh", "--overlap", "skip")
    [made] = shell.json(*rates)
    assert (made["schedule"], made["body"], made["overlap"], made["declared"]) == ("every 1h", "refresh", "skip", False)
    task = ("--task", "shop.report", "--arguments", '{"kind": "short"}')
    shell.ok(
        "schedule", "add", "report", "--cron", "0 9 * * mon-fri", "--tz", "Asia/Shanghai", "--queue", "mail", *task
    )
    listed = shell.ok("schedule", "list").out
    assert 'shop.report(kind="short")' in listed
    assert "rates: refresh" in listed
    assert shell.ok("schedule", "pause", "rates").out == "rates: every 1h, paused\n"
    assert shell.ok("schedule", "run", "rates").out.startswith("rates: pushed rates@")
    assert [job["body"] for job in shell.json("list", "rates")] == ["refresh"]
    assert "ready" in shell.ok("schedule", "show", "rates").out
    assert "next run" in shell.ok("schedule", "resume", "rates").out
    held = shell.ok("schedule", "backfill", "rates", "--since=-3h")
    assert held.out == "rates: pushed 0 of 3 runs\n"  # the run that was pushed above is not finished
    assert "--overlap skip" in held.err
    [job] = shell.json("list", "rates")
    shell.ok("delete", "rates", job["id"])
    assert shell.ok("schedule", "backfill", "rates", "--since=-3h").out == "rates: pushed 1 of 3 runs\n"
    assert shell.run("schedule", "backfill", "rates", "--since=1h").code == 2
    assert shell.run("schedule", "add", "rates", "--queue", "rates", "--body", "x").code == 2
    assert (
        shell.run("schedule", "add", "x", "--every", "1h", "--queue", "q", "--task", "t", "--arguments", "1").code == 2
    )
    assert shell.ok("schedule", "remove", "rates").out == "rates removed\n"
    assert shell.run("schedule", "show", "rates", "--json").error["code"] == "schedule_not_found"


def test_on_a_store(shell: Shell) -> None:
    shell.ok("migrate")
    life_of_a_schedule(shell)


async def test_through_a_server_which_runs_them(shell: Shell, serve: Serve) -> None:
    remote = Shell(serve("--dev").api, shell.folder)
    life_of_a_schedule(remote)
    remote.ok("schedule", "add", "beat", "--every", "1s", "--queue", "beats", "--body", "x")
    await until(lambda: len(remote.json("list", "beats")) >= 2, every_s=0.2)
    ids = [job["id"] for job in remote.json("list", "beats")]
    assert all(one.startswith("beat@") and one.endswith("000") for one in ids)


def test_schedules_that_a_program_declares(shell: Shell) -> None:
    app = duetime.App(shell.url)

    @app.cron("0 9 * * *", tz="Asia/Shanghai", name="morning report")
    @app.task(name="report", queue="mail")
    def report() -> None: ...

    async def plant() -> None:
        async with duetime.connect_async(shell.url) as client:
            await Scheduler(app, client).plant()

    asyncio.run(plant())
    [shown] = shell.json("schedule", "list")
    assert shown["next_at"] % 86_400_000 == 3_600_000
    assert (shown["name"], shown["task"], shown["queue"], shown["declared"]) == (
        "morning report",
        "report",
        "mail",
        True,
    )
    assert (shown["schedule"], shown["missed"]) == ("cron 0 9 * * * Asia/Shanghai", "last")
    assert shell.run("schedule", "add", "morning report", "--every", "1h", "--queue", "q").code == 1
    shell.ok("schedule", "pause", "morning report")
    asyncio.run(plant())
    assert "paused" in shell.ok("schedule", "list").out
