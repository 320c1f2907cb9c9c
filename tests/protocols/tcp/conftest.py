"""The TCP server on a store in memory, with one topic, spoken to as the PHP client does."""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC
from functools import partial
from typing import Any

import pytest

from duetime.callbacks.topic_registry import TopicAddress, TopicRegistry
from duetime.callbacks.topic_service import TopicJobs
from duetime.engine.pools import Pools
from duetime.engine.registry_copy import RegistryCopy
from duetime.model.names import Queue
from duetime.model.topic import Topic
from duetime.protocols.tcp import CommandRules, Commands, TcpOptions, TcpServer
from duetime.stores.base import Store
from duetime.stores.group.store import GroupStore
from duetime.stores.open import open_store
from tests.faults.store_faults import FaultyStore

PLACE = TopicAddress("default", Queue("shop", "order"))


class Talk:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def receive(self) -> dict[str, Any]:
        async with asyncio.timeout(60):
            length = int(await self.reader.readexactly(4))
            return json.loads(await self.reader.readexactly(length))

    async def call(self, **request: Any) -> dict[str, Any]:
        await self.send(packed(request))
        return await self.receive()

    async def is_closed(self) -> bool:
        async with asyncio.timeout(60):
            try:
                return await self.reader.read() == b""
            except ConnectionResetError:
                return True


def packed(request: object) -> bytes:
    text = json.dumps(request).encode()
    return b"%04d" % len(text) + text


class Site:
    """A server with its topics."""

    def __init__(self, pools: Pools, topics: TopicRegistry, topic_jobs: TopicJobs) -> None:
        self.pools = pools
        self.topics = topics
        self.topic_jobs = topic_jobs
        self.port = 0

    @asynccontextmanager
    async def serving(self, rules: CommandRules | None = None, **options: Any) -> AsyncIterator[TcpServer]:
        sock = socket.create_server(("127.0.0.1", 0))
        self.port = sock.getsockname()[1]
        commands = Commands(self.topic_jobs, rules or CommandRules("default", "shop"))
        server = TcpServer(commands, [sock], TcpOptions(**options))
        await server.start()
        try:
            yield server
        finally:
            await server.stop(1)

    @asynccontextmanager
    async def talk(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[Talk]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=tls)
        try:
            yield Talk(reader, writer)
        finally:
            writer.close()


@pytest.fixture
def members() -> dict[str, FaultyStore]:
    """The stores of a group, for tests that change the topic's store; no members mean one store in memory."""
    return {}


@pytest.fixture
async def site(members: dict[str, FaultyStore]) -> AsyncIterator[Site]:
    async def open_it(url: str) -> Store:
        if not members:
            return await open_store(url)

        async def reach(name: str) -> Store:
            return members[name]

        return await GroupStore.open("pair", {name: partial(reach, name) for name in members})

    async with AsyncExitStack() as stack:
        pools = await stack.enter_async_context(Pools({"default": "memory:"}, open_store=open_it))
        registry_copy = await stack.enter_async_context(RegistryCopy(lambda: pools.registry))
        topics = TopicRegistry(lambda: pools.registry, registry_copy)
        await topics.add(PLACE, Topic(key="order", callback="http://example.com/", delay_ms=60_000))
        yield Site(pools, topics, TopicJobs(pools.engine, topics, zone=UTC))
