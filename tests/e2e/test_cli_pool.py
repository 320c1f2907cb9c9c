"""`pool`: pools that servers open and close without a restart, from a shell and from the console."""

import json
from pathlib import Path

import httpx

import duetime
from tests.e2e.shell import Shell
from tests.plugins.served import ServedProcess, StartServer
from tests.plugins.until import until


def publish(server: ServedProcess, token: str) -> int:
    """To the pool that the token names, on a new connection, which may reach any process."""
    with httpx.Client(base_url=server.api, headers={"x-token": token}) as client:
        return client.put("/api/shop/mail", params={"ttl": 60}, content=b"x").status_code


def make_token(server: ServedProcess) -> str:
    answer = httpx.post(f"{server.admin}/token/shop", params={"description": "x", "pool": "eu"})
    return str(answer.json().get("token", ""))


def read(server: ServedProcess, path: str) -> httpx.Response:
    return httpx.get(f"{server.admin}/{path}")


async def test_every_process_opens_and_closes_a_pool_without_a_restart(
    start_server: StartServer, redis_url: str, tmp_path: Path
) -> None:
    server = start_server("--store", redis_url, "--workers", "2", dev=False)
    shell = Shell(server.admin, tmp_path)
    other = f"{redis_url.rpartition('/')[0]}/7"
    assert make_token(server) == ""
    assert shell.json("pool", "add", "eu", other) == [{"pools": {"eu": other}}]
    await until(lambda: make_token(server))
    token = make_token(server)
    await until(lambda: {publish(server, token) for _ in range(10)} == {201})
    assert read(server, "pools").json() == ["default", "eu"]
    assert shell.json("pool", "list") == [{"name": "eu", "url": other}]
    assert shell.run("pool", "add", "eu", other).code == 2
    shell.ok("pool", "remove", "eu")
    await until(lambda: all(publish(server, token) >= 400 for _ in range(10)))
    ready = read(server, "readyz")
    assert ready.status_code == 200, ready.text
    assert server.stop()[0] == 0


def test_a_pool_that_was_added_is_open_after_a_restart(start_server: StartServer, redis_url: str) -> None:
    other = f"{redis_url.rpartition('/')[0]}/7"
    first = start_server("--store", redis_url)
    added = httpx.post(f"{first.admin}/registered-pools", json={"name": "eu", "url": other})
    assert added.json() == {"pools": {"eu": other}}
    assert first.stop()[0] == 0
    second = start_server("--store", redis_url)
    assert httpx.get(f"{second.admin}/pools").json() == ["default", "eu"]


def test_the_console_adds_and_removes_a_pool(start_server: StartServer, redis_url: str) -> None:
    server = start_server("--store", redis_url)
    other = f"{redis_url.rpartition('/')[0]}/7"
    with httpx.Client(base_url=server.admin, follow_redirects=True) as browser:
        browser.headers["origin"] = server.admin
        assert "eu" in browser.post("/console/do/add-store", data={"name": "eu", "url": other}).text
        assert browser.get("/pools").json() == ["default", "eu"]
        browser.post("/console/do/remove-pool", data={"pool": "eu"})
        assert browser.get("/pools").json() == ["default"]


async def test_the_console_sets_the_shares_of_a_namespace(start_server: StartServer, redis_url: str) -> None:
    """In every process, and again after a restart."""
    server = start_server("--store", redis_url, "--workers", "2")

    def low_of_ten() -> int:
        with duetime.connect(server.api) as client:
            client.queue("other").push("x")  # keeps the namespace in the console's list
            queue = client.queue("mail")
            for priority in ("high", "low"):
                queue.bulk(["x"] * 20, priority=priority)
            jobs = queue.reserve(limit=10)
            queue.purge()
        return sum(job.priority is duetime.Priority.LOW for job in jobs)

    assert low_of_ten() == 2
    sent = {"namespace": "default", "shares": "1:1:50"}
    headers = {"origin": server.admin}
    async with httpx.AsyncClient(base_url=server.admin, follow_redirects=True, headers=headers) as browser:
        assert "The shares of default apply" in (await browser.post("/console/do/shares", data=sent)).text
        refused = await browser.post("/console/do/shares", data={**sent, "shares": "0:1"})
        assert "each from 1 to 100" in refused.text
        await until(lambda: "1:1:50" in read(server, "console/access").text)
    await until(lambda: min(low_of_ten() for _ in range(6)) >= 7)
    assert server.stop()[0] == 0
    server = start_server("--store", redis_url)
    assert low_of_ten() >= 7


def test_mistakes_are_named(shell: Shell, redis_url: str) -> None:
    url = ["--url", redis_url]
    for arguments, text in (
        (["add", "eu", "memory:"], "must name a server that every process can reach"),
        (["add", "eu", "redis://127.0.0.1:1/0"], "cannot be opened"),
        (["add", "e u", redis_url], "pool name must consist of"),
        (["add", "default", redis_url], "is there already"),
        (["remove", "eu"], "is not in the registry"),
    ):
        ran = shell.run("pool", *arguments, *url)
        assert ran.code != 0
        assert text in ran.err


def test_the_tiers_of_a_pool_are_shown_each_on_its_own(tmp_path: Path) -> None:
    (tmp_path / "duetime.toml").write_text(
        f'[pool.default]\nhot = "sqlite://{tmp_path}/hot.db"\ncold = "sqlite://{tmp_path}/cold.db"\n'
    )
    url = f"tiered:default?hot=sqlite://{tmp_path}/hot.db&cold=sqlite://{tmp_path}/cold.db"
    shell = Shell(url, tmp_path)
    shell.ok("push", "mail", "soon", "--delay", "1h")
    shell.ok("push", "mail", "far", "--delay", "30d")
    shell.ok("push", "other", "far", "--delay", "30d")

    said = shell.spawn("pool", "show", "--json", DUETIME_URL="")
    hot, cold = (json.loads(line) for line in said.out.splitlines())
    assert (said.code, hot["store"], hot["jobs"], cold["store"], cold["jobs"]) == (0, "hot", 1, "cold", 2)
    assert cold["next_due_at"] - hot["next_due_at"] > 86_400_000
    assert not hot["problems"] + cold["problems"]

    by_queue = shell.spawn("pool", "show", "--queues", "--json", DUETIME_URL="")
    assert [json.loads(line) for line in by_queue.out.splitlines()] == [
        {"queue": "default/mail", "hot": 1, "cold": 1},
        {"queue": "default/other", "hot": 0, "cold": 1},
    ]
    assert shell.ok("queue", "counts").out.split()[-1] == "2", "of all jobs, these are in cold"

    gone = shell.spawn("pool", "show", "--url", f"tiered:x?hot=sqlite://{tmp_path}/hot.db&cold=redis://127.0.0.1:1")
    assert gone.code == 1
    assert "Redis" in gone.out
    assert "no pool 'east'" in shell.spawn("pool", "show", "east", DUETIME_URL="").err
