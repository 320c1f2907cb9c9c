"""Calls about the store behind a namespace, for the pipelines."""

from collections.abc import Callable, Sequence
from urllib.parse import quote

import msgspec

from duetime.client import calls
from duetime.client.call import Call, Request, decode, get_request, post_request
from duetime.engine import Engine
from duetime.journal.registration import Journaling, RegisteredNode, find_journaling, registered
from duetime.model.errors import Conflict, DuetimeError
from duetime.model.job import IfExists, Moved
from duetime.model.names import DEFAULT_POOL, Queue
from duetime.stores.base import Push, Pushed, StoreInfo
from duetime.stores.finishes import JoinCount
from duetime.stores.registry import MOVED_AWAY
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
    """The name that the pool of a namespace has in the journal, and since when the pool journals, 0 if it does not.

    Raises Conflict if the jobs of the store were moved to another one.
    """

    def parse(reply: bytes) -> Journaling:
        message = decode(reply, messages.JournalNodesOut)
        return Journaling(message.since, message.pool)

    async def run(engine: Engine) -> Journaling:
        if moved := await engine.store.registry.get(MOVED_AWAY, "current"):
            place = msgspec.json.decode(moved.value)
            raise Conflict(f"the jobs of this store were moved to {place['to']}: ask that store")
        return await find_journaling(engine.store) or Journaling(0, DEFAULT_POOL)

    return Call(_nodes_request(namespace), parse, run, repeatable=True)


def journal_nodes(namespace: str) -> Call[dict[str, RegisteredNode]]:
    """The nodes that write the journal of the pool that a namespace's jobs are in, by name."""

    def parse(reply: bytes) -> dict[str, RegisteredNode]:
        nodes = decode(reply, messages.JournalNodesOut).nodes
        return {
            one.node: RegisteredNode(
                one.at, one.last, one.abandoned, one.host, pid=one.pid, journal=one.journal, seen_at=one.seen_at
            )
            for one in nodes
        }

    async def run(engine: Engine) -> dict[str, RegisteredNode]:
        return await registered(engine.store)

    return Call(_nodes_request(namespace), parse, run, repeatable=True)


def put_back(queue: Queue, requests: Sequence[Push]) -> Call[Sequence[Pushed | DuetimeError]]:
    """Push jobs that a store has lost, one per request; a job that exists is kept. A server journals them and gives
    each its mark; on a store, which gets the requests as they are, the caller must journal.
    """

    def answer(result: calls.Result) -> Pushed | DuetimeError:
        return Pushed([result], 0) if isinstance(result, Moved) else result or DuetimeError()

    each = calls.push_each(queue, [request.jobs[0] for request in requests], IfExists.KEEP)
    return Call(
        each.request,
        lambda reply: [answer(one) for one in each.parse(reply)],
        lambda engine: engine.store.push(queue, requests),
        repeatable=True,
    )


def raise_joins(queue: Queue, joins: Sequence[JoinCount]) -> Call[None]:
    """Raise the number of finishes that joins have seen: see `Store.raise_joins`."""
    message = messages.JoinsIn([messages.JoinCountIn(one.name, one.count, f"{one.left_ms}ms") for one in joins])
    return Call(
        lambda: post_request(queue, "joins", message),
        lambda reply: None,
        lambda engine: engine.store.raise_joins(queue, joins),
        repeatable=True,
    )


def _nodes_request(namespace: str) -> Callable[[], Request]:
    return lambda: get_request(f"/v1/namespaces/{quote(namespace, safe='')}/journal-nodes")
