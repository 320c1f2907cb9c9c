"""The application under any ASGI server: request ids, clients that disconnect, errors without internals."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.types import Message, Scope

from duetime.engine.pools import Pools
from duetime.engine.registry_copy import RegistryCopy
from duetime.metrics.scraper import Scraper
from duetime.model.errors import StoreFull
from duetime.model.job import NewJob, State
from duetime.model.names import Queue
from duetime.protocols.lmstfy import LmstfyAdmin, LmstfyApp, LmstfyOptions, LmstfyParts
from duetime.protocols.tokens import Tokens
from duetime.server.supervision.siblings import Alone
from duetime.stores.base import RulesChange
from duetime.stores.memory.store import MemoryStore

QUEUE = Queue("ns", "q")


class Exchange:
    """One request as a plain ASGI server would serve it."""

    def __init__(self, method: str, path: str, query: bytes = b"", body: bytes = b"") -> None:
        self.scope: Scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query,
            "headers": [],
            "client": None,
        }
        self.sent: list[Message] = []
        self.gone = asyncio.Event()
        self._messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive(self) -> Message:
        if self._messages:
            return self._messages.pop()
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def body(self) -> bytes:
        return bytes(self.sent[1]["body"])

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])


@pytest.fixture
async def parts() -> AsyncIterator[LmstfyParts]:
    async def open_store(url: str) -> MemoryStore:
        return MemoryStore()

    async with (
        Pools({"default": "memory:"}, open_store=open_store) as pools,
        RegistryCopy(lambda: pools.registry) as registry_copy,
    ):
        tokens = Tokens(registry_copy, lambda: pools.registry, pools, dev=True)
        yield LmstfyParts.make(pools, registry_copy, tokens, LmstfyOptions(), Scraper(pools, Alone()))


async def ask(parts: LmstfyParts, *request: Any) -> Exchange:
    exchange = Exchange(*request)
    await LmstfyApp(parts)(exchange.scope, exchange.receive, exchange.send)
    return exchange


async def test_it_brings_a_request_id_where_the_server_has_none(parts: LmstfyParts) -> None:
    exchange = await ask(parts, "PUT", "/api/ns/q", b"", b"x")
    assert exchange.status == 201
    assert len(exchange.headers[b"x-request-id"]) == 26
    own = Exchange("GET", "/version")
    await LmstfyAdmin(parts)(own.scope, own.receive, own.send)
    assert len(own.headers[b"x-request-id"]) == 26
    given = Exchange("GET", "/api/ns/q")
    given.scope["state"] = {"request_id": "from the server"}
    await LmstfyApp(parts)(given.scope, given.receive, given.send)
    assert b"x-request-id" not in given.headers


async def test_a_client_that_goes_ends_its_poll(parts: LmstfyParts) -> None:
    exchange = Exchange("GET", "/api/ns/q", b"timeout=60")
    poll = asyncio.create_task(LmstfyApp(parts)(exchange.scope, exchange.receive, exchange.send))
    await asyncio.sleep(0.01)
    exchange.gone.set()
    await poll
    await parts.pools.engine("default").push(QUEUE, [NewJob("x", b"")])
    [counts] = await parts.pools.engine("default").store.counts([QUEUE])
    assert (counts.ready, counts.leased) == (1, 0)


async def test_messages_of_a_store_stay_inside(parts: LmstfyParts, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = parts.pools.engine("default")

    async def full(*arguments: object, **options: object) -> None:
        raise StoreFull("secret details")

    async def broken(*arguments: object, **options: object) -> None:
        raise ZeroDivisionError("secret details")

    for failing, body in ((full, b'{"error":"internal error"}'), (broken, b"")):
        monkeypatch.setattr(engine, "push", failing)
        monkeypatch.setattr(engine, "reserve", failing)
        for method in ("PUT", "GET"):
            exchange = await ask(parts, method, "/api/ns/q")
            assert (exchange.status, exchange.body) == (500, body)


async def test_a_queue_with_caps(parts: LmstfyParts) -> None:
    engine = parts.pools.engine("default")
    await engine.store.configure(QUEUE, RulesChange(max_jobs=1, max_body=5))
    too_large = await ask(parts, "PUT", "/api/ns/q", b"", b"123456")
    assert (too_large.status, too_large.body) == (413, b'{"error":"body too large"}')
    assert (await ask(parts, "PUT", "/api/ns/q", b"", b"12345")).status == 201
    full = await ask(parts, "PUT", "/api/ns/q", b"", b"1")
    assert (full.status, full.body) == (429, b'{"msg":"the queue is full"}')


async def test_an_id_that_was_drawn_twice_is_drawn_again(parts: LmstfyParts, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = iter(["A" * 26, "A" * 26, "B" * 26])
    monkeypatch.setattr("duetime.protocols.lmstfy.producers.make_id", lambda *_, **__: next(ids))
    answers = [await ask(parts, "PUT", "/api/ns/q", b"", body) for body in (b"first", b"second")]
    assert [answer.status for answer in answers] == [201, 201]
    page = await parts.pools.engine("default").store.list_jobs(QUEUE, State.READY)
    assert {job.id: job.body for job in page.jobs} == {"A" * 26: b"first", "B" * 26: b"second"}


async def test_other_protocols_are_left_alone(parts: LmstfyParts) -> None:
    for application in (LmstfyApp(parts), LmstfyAdmin(parts)):
        exchange = Exchange("GET", "/")
        exchange.scope["type"] = "websocket"
        await application(exchange.scope, exchange.receive, exchange.send)
        assert exchange.sent == []


async def test_labels_of_queues_are_bounded(parts: LmstfyParts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts.scraper.meters.names, "_limit", 2)
    for queue in ("a", "b", "c", "d", "a"):
        await ask(parts, "PUT", f"/api/ns/{queue}", b"", b"x")
    text = (await parts.scraper.text()).decode()
    samples = [line for line in text.splitlines() if line.startswith("infra_lmstfy_redis_publish_queue_jobs{")]
    assert sorted(line.partition("queue=")[2] for line in samples) == ['"a"} 2', '"b"} 1', '"other"} 2']


async def test_labels_of_namespaces_are_bounded(parts: LmstfyParts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts.scraper.meters.names, "_limit", 2)
    for namespace in ("a", "b", "c", "d", "a"):
        await ask(parts, "PUT", f"/api/{namespace}/q", b"", b"x")
    text = (await parts.scraper.text()).decode()
    samples = [line for line in text.splitlines() if line.startswith("infra_lmstfy_http_http_codes{")]
    counts = {line.partition('namespace="')[2].partition('"')[0]: line.rpartition(" ")[2] for line in samples}
    assert counts == {"a": "2", "b": "1", "other": "2"}
