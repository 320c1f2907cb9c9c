"""A job in a program's hands, on a store and through a server, for blocking code and for asyncio."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import duetime
from duetime.model.job import Event, State
from tests.plugins.serving import serving


class Broken(Exception):
    pass


@pytest.fixture(scope="module")
def server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("jobs"), "--dev") as served:
        yield served.api


@pytest.fixture(params=["memory", "sqlite", "redis", "http"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "memory":
            return "memory:"
        case "sqlite":
            return f"sqlite://{tmp_path}/jobs.db"
        case "redis":
            return request.getfixturevalue("redis_url")
        case _:
            return request.getfixturevalue("server_url")


def test_the_fields_and_verbs_of_a_leased_job(url: str, request: pytest.FixtureRequest) -> None:
    with duetime.connect(url, namespace="hands") as client:
        queue = client.queue(f"mail-{abs(hash(request.node.name))}")
        queue.push({"to": "ann"}, id="a", tries=3, attributes={"trace": "7"})
        assert ("a" in queue, "b" in queue, 5 in queue, len(queue), bool(queue)) == (True, False, False, 1, True)
        job = queue.pop()
        assert job is not None
        assert (job.id, job.json(), job.text(), job.body) == ("a", {"to": "ann"}, '{"to":"ann"}', b'{"to":"ann"}')
        assert (job.queue, job.attempt, job.used, job.tries) == (queue.name, 1, 1, 3)
        assert (job.attributes, job.error, job.priority) == ({"trace": "7"}, "", duetime.Priority.NORMAL)
        assert repr(job) == f'<LeasedJob a of {queue.name}, try 1 of 3, body b\'{{"to":"ann"}}\'>'
        assert job.extend("1h") > job.lease_until + 3_000_000
        assert job.release(error="busy").event is Event.RELEASED
        [job] = client.reserve([queue.name.name])
        assert (job.attempt, job.error) == (2, "busy")
        job.give_back()
        again = queue.take()
        assert again.attempt == 3
        client.extend(again)
        assert again.kill("no such address").reason == "killed"
        with pytest.raises(duetime.LeaseLost):
            again.ack()
        assert type(queue.get("a").reason) is str
        assert queue.get("a").reason == "killed"
        queue.dead.respawn(["a"])
        queue.take().ack()
        assert len(queue) == 0
        assert repr(queue) == f"<QueueClient {queue.name}>"
        assert repr(queue.dead) == f"<DeadLetters {queue.name}>"


def test_a_block_acks_or_releases_or_leaves_alone(url: str) -> None:
    with duetime.connect(url) as client:
        queue = client.queue("blocks")
        queue.push("x", id="a")
        with pytest.raises(Broken), queue.take() as job:  # noqa: PT012
            assert job.id == "a"
            raise Broken
        assert queue.get("a").error == "Broken: "
        with queue.take(ttr="1h") as job:
            job.release("1h")
        assert queue.get("a").state is State.DELAYED
        queue.reschedule("a", delay=0)
        with queue.take("1m"):
            pass
        assert "a" not in queue
        with pytest.raises(TimeoutError, match="blocks"):
            queue.take("10ms")


def test_a_lost_lease_does_not_hide_the_error(url: str) -> None:
    with duetime.connect(url) as client:
        queue = client.queue("lost")
        queue.push("x", id="a")
        with pytest.raises(Broken), queue.take():  # noqa: PT012
            queue.cancel("a")
            raise Broken


async def test_a_block_of_a_coroutine(url: str) -> None:
    async with duetime.connect_async(url) as client:
        queue = client.queue("coroutines")
        await queue.push([1], id="a")
        with pytest.raises(Broken):  # noqa: PT012
            async with queue.take() as job:
                assert (job.id, job.json(), job.attempt) == ("a", [1], 1)
                raise Broken
        assert (await queue.get("a")).error == "Broken: "
        job = await queue.take("1m")
        assert await job.extend("1h") > job.lease_until
        await job.release()
        async with queue.take() as job:
            await job.kill("enough")
        assert (await queue.get("a")).reason == "killed"
        await queue.dead.respawn(["a"])
        async with queue.take():
            pass
        assert await queue.size() == 0
        with pytest.raises(TimeoutError):
            async with queue.take("10ms"):
                pass
        assert "AsyncLeasedJob" in repr(job)


@pytest.mark.parametrize("kind", ["client", "async"])
def test_the_text_of_a_client_has_no_password(kind: str) -> None:
    url = "redis://me:secret@localhost:1"
    client = duetime.Client("http://me:secret@localhost:1") if kind == "client" else duetime.AsyncClient(url)
    for subject in (client, duetime.App(url)):
        assert "secret" not in repr(subject)
        assert "localhost:1" in repr(subject)


def test_collections_are_collections(url: str) -> None:
    with duetime.connect(url, namespace="lists") as client:
        delayed, due = duetime.DelayedQueue(client, "names"), duetime.BlockingQueue(client, "names")
        delayed.offer("ann", "1h")
        due.offer("bob")
        due.offer("cid")
        assert (len(delayed), len(due), list(delayed), list(due)) == (1, 2, ["ann"], ["bob", "cid"])
        assert ("ann" in delayed, "ann" in due, "cid" in due) == (True, False, True)
        due.clear()
        assert (len(due), bool(due)) == (0, True)
        assert repr(due) == "<BlockingQueue lists/names>"
