"""Sizes and lateness of other systems' queues in `top`, in the metrics and in the console."""

import re
import time
from pathlib import Path

import httpx
import pytest
import redis

from duetime.bridges.foreign import open_bridge
from duetime.bridges.laravel import LaravelRedis
from duetime.model.errors import InvalidSettings
from duetime.server.bridge_sizes import MOST_QUEUES, BridgeSizes, read_sizes
from tests.e2e.shell import Shell
from tests.plugins.served import StartServer
from tests.plugins.until import until


@pytest.fixture
def address(redis_url: str) -> str:
    """A Laravel queue with two jobs that are late, and one in an hour."""
    laravel = LaravelRedis(redis_url, prefix="shop_")
    now = int(time.time())
    for when in (f"{now - 120}", f"{now - 60}", "+3600"):
        laravel.add_texts("mail", [(when, b'{"job":"A","attempts":0,"n":"%b"}' % when.encode())])
    laravel.close()
    return f"laravel+{redis_url}?prefix=shop_#shop"


def test_top_shows_them(address: str, redis_url: str, tmp_path: Path) -> None:
    shell = Shell(f"sqlite:{tmp_path / 'jobs.db'}", tmp_path)
    shell.ok("push", "ours", "x")
    before = redis.Redis.from_url(redis_url).keys("*")
    [frame] = shell.json("top", "--once", "--bridge", address)
    [there] = frame["bridges"]
    assert (there["bridge"], there["queue"], there["delayed"], there["ready"]) == ("shop", "mail", 3, 0)
    assert there["late_ms"] >= 120_000
    shown = shell.ok("top", "--once", "--bridge", address).out
    assert re.search(r"shop: mail +0 +3 +0 .* 2 ?m", shown)
    assert redis.Redis.from_url(redis_url).keys("*") == before


def read(url: str) -> str:
    return httpx.get(url).text


async def test_metrics_and_console_show_them(address: str, start_server: StartServer) -> None:
    server = start_server("--workers", "2", "--store", f"sqlite:{'jobs.db'}", DUETIME_BRIDGES=address)

    def metrics() -> dict[str, float]:
        lines = [line for line in read(f"{server.admin}/metrics").splitlines() if line.startswith("duetime_bridge")]
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}

    await until(metrics)
    found = metrics()
    assert found['duetime_bridge_jobs{bridge="shop",queue="mail",state="delayed"}'] == 3
    assert found['duetime_bridge_late_seconds{bridge="shop",queue="mail"}'] >= 120
    page = read(f"{server.admin}/console/stores")
    assert "Bridge shop: laravel" in page
    assert re.search(r"mail</td><td[^>]*>0</td><td[^>]*>3</td>", page)
    assert server.stop()[0] == 0


async def test_a_system_that_is_away_is_shown_with_the_reason(start_server: StartServer) -> None:
    server = start_server(DUETIME_BRIDGES="redisson+redis://u:secret@127.0.0.1:1/0")
    await until(lambda: "Bridge redisson" in read(f"{server.admin}/console/stores"))
    page = read(f"{server.admin}/console/stores")
    assert "127.0.0.1:1" in page
    assert "secret" not in page
    assert read(f"{server.admin}/readyz")
    server.stop()


@pytest.mark.parametrize("address", ["redis://x", "sidekiq+redis://x", "laravel+amqp://x"])
def test_a_wrong_address_is_refused(address: str) -> None:
    with pytest.raises(InvalidSettings):
        open_bridge(address)


def test_two_bridges_of_one_name_are_refused() -> None:
    addresses = "laravel+redis://127.0.0.1:1 laravel+redis://127.0.0.1:2"
    with pytest.raises(InvalidSettings, match="add #NAME"):
        BridgeSizes(addresses, None, None, deployment="x")  # type: ignore[arg-type]


def test_a_system_with_very_many_queues_is_read_in_part(redis_url: str) -> None:
    laravel = LaravelRedis(redis_url, prefix="many_")
    try:
        for number in range(MOST_QUEUES + 1):
            laravel.add_texts(f"q{number}", [("", b'{"job":"A","attempts":0}')])
        read = read_sizes(laravel)
    finally:
        laravel.close()
    assert len(read["queues"]) == MOST_QUEUES
    assert read["error"] == f"only the first {MOST_QUEUES} of {MOST_QUEUES + 1} queues are read"
