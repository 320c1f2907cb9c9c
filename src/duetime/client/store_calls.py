"""Calls about the store behind a namespace, for the pipelines."""

from collections.abc import Callable, Sequence
from urllib.parse import quote

from duetime.client.call import Call, Request, decode, get_request, post_request
from duetime.engine import Engine
from duetime.journal.pool_journal import Journaling, known
from duetime.journal.registered_nodes import RegisteredNode, registered
from duetime.model.names import DEFAULT_POOL, Queue
from duetime.stores.base import StoreInfo
from duetime.stores.finishes import JoinCount
from duetime.wire import messages


def store_info(namespace: str) -> Call[StoreInfo]:
    """The store that a namespace's jobs are in. From a server: its epoch and time, and nothing else."""

    def parse(reply: bytes) -> StoreInfo:
        message = decode(reply, messages.NamespaceOut)
        return StoreInfo("http", "", message.epoch, message.now)

    return Call(
        lambda: get_request(f"/v1/namespaces/{quote(namespace, safe='')}"),
        parse,
        lambda engine: engine.store.ping(),
        repeatable=True,
    )


def journaling(namespace: str) -> Call[Journaling]:
    """The name that the pool of a namespace has in the journal, empty if an older server does not tell it, and since
    when the pool journals, 0 if it does not.
    """

    def parse(reply: bytes) -> Journaling:
        message = decode(reply, messages.JournalNodesOut)
        return Journaling(message.since, message.pool)

    async def run(engine: Engine) -> Journaling:
        return await known(engine.store) or Journaling(0, DEFAULT_POOL)

    return Call(_nodes_request(namespace), parse, run, repeatable=True)


def journal_nodes(namespace: str) -> Call[dict[str, RegisteredNode]]:
    """The nodes that write the journal of the pool that a namespace's jobs are in, by name."""

    def parse(reply: bytes) -> dict[str, RegisteredNode]:
        nodes = decode(reply, messages.JournalNodesOut).nodes
        return {one.node: RegisteredNode(one.at, one.last, one.abandoned) for one in nodes}

    async def run(engine: Engine) -> dict[str, RegisteredNode]:
        return await registered(engine.store)

    return Call(_nodes_request(namespace), parse, run, repeatable=True)


def raise_joins(queue: Queue, joins: Sequence[JoinCount]) -> Call[None]:
    """Let joins have seen at least so many finishes: see `Store.raise_joins`."""
    message = messages.JoinsIn([messages.JoinCountIn(one.name, one.count, f"{one.left_ms}ms") for one in joins])
    return Call(
        lambda: post_request(queue, "joins", message),
        lambda reply: None,
        lambda engine: engine.store.raise_joins(queue, joins),
        repeatable=True,
    )


def _nodes_request(namespace: str) -> Callable[[], Request]:
    return lambda: get_request(f"/v1/namespaces/{quote(namespace, safe='')}/journal-nodes")
