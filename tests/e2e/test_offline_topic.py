"""A topic that is offline takes no job through any protocol, and its removal or return lets jobs in again."""

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

import duetime
from duetime.client.topics import Topics
from duetime.model.errors import TopicOffline
from duetime.stores.base import RulesChange
from tests.e2e.shell import Shell
from tests.plugins.served import ServedProcess, StartServer
from tests.plugins.until import until

PROTOCOLS = {
    "DUETIME_TCP_ENABLED": "true",
    "DUETIME_TCP_PORT": "0",
    "DUETIME_OUQIANG_ENABLED": "true",
    "DUETIME_OUQIANG_PORT": "0",
    "DUETIME_OUQIANG_NAMESPACE": "default",
}
CALLBACK = "http://127.0.0.1:9/"


def _port(server: ServedProcess, label: str) -> int:
    return int(server.address(label).rpartition(":")[2])


def _tcp_code(server: ServedProcess) -> int:
    text = json.dumps({"cmd": "add", "topic": "mail", "id": "tcp", "body": {"a": 1}}).encode()
    with socket.create_connection(("127.0.0.1", _port(server, "TCP"))) as connection:
        connection.sendall(b"%04d" % len(text) + text)
        stream = connection.makefile("rb")
        return json.loads(stream.read(int(stream.read(4))))["code"]


def _answers(server: ServedProcess, store: str, folder: Path) -> dict[str, Any]:
    """What each protocol says to one push."""
    api, answers = server.api, dict[str, Any]()
    with httpx.Client(base_url=api) as http:
        for name, path, body in (
            ("v1 topic", "/v1/namespaces/default/topics/mail/jobs", {"body": {}}),
            ("v1", "/v1/queues/default/mail/jobs", {"body": "x"}),
        ):
            reply = http.post(path, json=body)
            answers[name] = reply.status_code, reply.json().get("code", "")
        for name in ("lmstfy", "lmstfy again"):
            reply = http.put("/api/default/mail", content=b"x", headers={"x-token": "any"})
            answers[name] = reply.status_code, "offline" in reply.text
    job = {"topic": "mail", "id": "ouqiang", "delay": 60, "ttr": 10, "body": "x"}
    ouqiang = httpx.post(f"http://127.0.0.1:{_port(server, 'ouqiang')}/push", json=job).json()
    answers["ouqiang"] = ouqiang["code"], "offline" in ouqiang["message"]
    answers["tcp"] = _tcp_code(server)
    console = httpx.post(
        f"{server.admin}/console/do/push",
        follow_redirects=True,
        data={"pool": "default", "namespace": "default", "queue": "mail", "body": "x", "priority": "2", "tries": "5"},
        headers={"origin": server.admin},
    )
    answers["console"] = TopicOffline.of_queue().message in console.text
    for name, url in (("SDK over HTTP", api), ("SDK on the store", store)):
        with duetime.connect(url) as client:
            try:
                client.queue("mail").push("x", delay="1h")
                answers[name] = ""
            except TopicOffline as error:
                answers[name] = error.code
    for name, url in (("CLI over HTTP", api), ("CLI on the store", store)):
        ran = Shell(url, folder).run("push", "mail", "x", "--delay", "1h", "--json")
        answers[name] = ran.error["code"] if ran.code else ""
    return answers


REFUSED = {
    "v1 topic": (409, "topic_offline"),
    "v1": (409, "topic_offline"),
    "lmstfy": (409, True),
    "lmstfy again": (409, True),
    "ouqiang": (1, True),
    "tcp": 0,
    "console": True,
    "SDK over HTTP": "topic_offline",
    "SDK on the store": "topic_offline",
    "CLI over HTTP": "topic_offline",
    "CLI on the store": "topic_offline",
}
TAKEN = {
    "v1 topic": (201, ""),
    "v1": (201, ""),
    "lmstfy": (201, False),
    "lmstfy again": (201, False),
    "ouqiang": (0, False),
    "tcp": 1,
    "console": False,
    "SDK over HTTP": "",
    "SDK on the store": "",
    "CLI over HTTP": "",
    "CLI on the store": "",
}


def test_every_protocol_refuses_jobs_of_an_offline_topic(start_server: StartServer, tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path}/jobs.db"
    server = start_server("--store", store, **PROTOCOLS)
    with duetime.connect(server.api) as client:
        topics, queue = Topics(client), client.queue("mail")
        topics.add("mail", CALLBACK, delay="1h")
        queue.pause()

        topics.offline("mail")
        assert _answers(server, store, tmp_path) == REFUSED
        assert queue.counts().delayed == queue.counts().ready == 0

        topics.online("mail")
        assert _answers(server, store, tmp_path) == TAKEN
        assert server.stop()[0] == 0


@pytest.mark.parametrize("how", ["online", "remove"])
def test_a_store_without_a_server_takes_jobs_again(tmp_path: Path, how: str) -> None:
    with duetime.connect(f"sqlite://{tmp_path}/jobs.db") as client:
        topics = Topics(client)
        topics.add("mail", CALLBACK)
        topics.offline("mail")
        with pytest.raises(TopicOffline):
            client.queue("mail").push("x")
        getattr(topics, how)("mail")
        client.queue("mail").push("x")


async def test_the_server_mends_a_queue_that_does_not_know_its_topics_status(
    start_server: StartServer, tmp_path: Path
) -> None:
    """A topic that an older release put offline, or whose pool was down then."""
    store = f"sqlite://{tmp_path}/jobs.db"
    with duetime.connect(store) as client:
        Topics(client).add("mail", CALLBACK)
        Topics(client).offline("mail")
        queue = client.queue("mail")
        queue.configure(RulesChange(offline=False))
        server = await asyncio.to_thread(start_server, "--store", store)
        await until(lambda: asyncio.to_thread(lambda: queue.configure().offline))
        assert (await asyncio.to_thread(server.stop))[0] == 0
