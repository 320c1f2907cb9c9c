"""A server that stops ends its polls, takes no job for them, and is the only reason for a poll to be early."""

import asyncio
import time
from pathlib import Path

import pytest

from tests.plugins.until import until
from tests.protocols.lmstfy.client import Lmstfy
from tests.protocols.lmstfy.server import Server
from tests.protocols.lmstfy.test_disconnects import has_parked


@pytest.mark.store_kind("sqlite")
async def test_parked_polls_end_with_no_job(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/jobs.db"
    with Server({"default": url}) as server:
        lmstfy = await Lmstfy.enter(server.api, server.admin, "ns")
        polls = [asyncio.create_task(lmstfy.consume("q", timeout=60, count=count)) for count in (1, 5)]
        await until(has_parked(server, 2))
        started = time.monotonic()
        await asyncio.to_thread(server.stop)
        assert await asyncio.gather(*polls) == [None, None]
        assert time.monotonic() - started < 50
    with Server({"default": url}) as server:
        again = Lmstfy(server.api, server.admin, "ns", lmstfy.token)
        job_id = await again.publish("q", tries=1)
        assert (await again.consume("q"))["job_id"] == job_id
