"""One line per request and per notification, in daily files or nowhere; and notifications in the journal."""

import asyncio
import logging
import re
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from duetime.callbacks.daily_logs import DailyLogs
from duetime.journal.reader import read_journal
from duetime.model.errors import JobNotFound
from duetime.model.job import Event
from tests.courier.conftest import World
from tests.courier.receiver import EMPTY, Receiver, Says
from tests.plugins.served import StartServer
from tests.plugins.until import until


def ids(path: Path, event: str) -> list[str]:
    return re.findall(rf"(?m)^\[\d{{4}}-\d\d-\d\d [\d:]{{8}}\]p_name=duetime {event} .*\bid=(\S+)", path.read_text())


async def test_requests_and_notifications_can_be_compared(world: World, receiver: Receiver, tmp_path: Path) -> None:
    receiver.answer = lambda call: EMPTY if call.fields["n"] == "3" else Says()
    async with DailyLogs(str(tmp_path / "logs"), UTC):
        await world.topic()
        for number in range(5):
            await world.add(f"job-{number}", n=number)
        for number in (0, 1, 2, 4):
            await world.gone(f"job-{number}")
        await world.waits("job-3")
        await world.service.jobs.get(world.place("mail"), "job-3")
        await world.service.jobs.delete(world.place("mail"), "job-3")
        for again in (world.service.jobs.get, world.service.jobs.delete):
            with pytest.raises(JobNotFound):
                await again(world.place("mail"), "job-3")
        logging.getLogger("duetime.courier").warning("trouble")
        day = datetime.now(UTC).strftime("%Y%m%d")

    requests, notices = tmp_path / f"logs/request_{day}.txt", tmp_path / f"logs/notify_{day}.txt"
    added = ids(requests, "added")
    assert sorted(added) == [f"job-{number}" for number in range(5)]
    assert set(added) - set(ids(notices, "notified")) == set(ids(notices, "notify_failed")) == {"job-3"}
    for event in ("got", "deleted", "get_refused", "delete_refused"):
        assert ids(requests, event) == ["job-3"]
    assert "status=200" in notices.read_text()
    assert "trouble" in (tmp_path / f"logs/err_{day}.txt").read_text()
    assert not logging.getLogger("duetime.request").handlers


async def test_without_a_folder_there_are_no_lines_about_single_jobs(
    world: World, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    async with DailyLogs("", UTC):
        await world.topic()
        await world.add("1")
        await world.gone("1")

    assert [record for record in caplog.records if record.name in ("duetime.request", "duetime.notify")] == []


async def test_the_journal_has_every_notification(
    start_server: StartServer, receiver: Receiver, tmp_path: Path
) -> None:
    receiver.answer = lambda call: Says(b"made", 201)
    folder = tmp_path / "journal"
    server = await asyncio.to_thread(start_server, "--journal", str(folder), DUETIME_CALLBACK_ALLOW="127.0.0.0/8")
    async with httpx.AsyncClient(base_url=server.api, verify=False) as http:
        await http.post("/v1/namespaces/shop/topics", json={"topic": "mail", "callback": receiver.url})
        reply = await http.post("/v1/namespaces/shop/topics/mail/jobs", json={"id": "1", "body": {"to": "ann"}})
        assert reply.status_code == 201, reply.text
        await receiver.got(1)

        async def gone() -> bool:
            return (await http.get("/v1/queues/shop/mail/jobs/1")).status_code == 404

        await until(gone)
    await asyncio.to_thread(server.stop)

    entries = [entry for entry in read_journal(folder) if entry.queue == "mail"]
    assert [entry.event for entry in entries] == [Event.ACCEPTED, Event.DELIVERED, Event.NOTIFIED, Event.ACKED]
    [told] = [entry for entry in entries if entry.event is Event.NOTIFIED]
    assert (told.id, told.status, told.attempt) == ("1", 201, 1)
