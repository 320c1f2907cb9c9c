"""What audit and reconcile ask of a store: how much it holds, single jobs, its time; a push, and counts of joins.

Works with a store URL and with a server's. A store is opened without an engine: inspecting moves nothing and must also
work where the pool journals.
"""

from collections.abc import Iterable, Mapping, Sequence

from duetime.client import calls, store_calls
from duetime.client.calls import Lookup
from duetime.client.store_link import StoreLink
from duetime.journal import registration
from duetime.journal.registration import Journaling, RegisteredNode
from duetime.model.errors import DuetimeError
from duetime.model.job import Counts, Job
from duetime.model.names import DEFAULT_NAMESPACE, Queue
from duetime.stores.base import Push, Pushed, StoreInfo
from duetime.stores.finishes import JoinCount


class StoreView:
    """Blocking, for one thread. Raises DuetimeError.

    A server answers for the pool that the token names, whatever the namespace. The token must be good for all
    namespaces.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        self._link = link = StoreLink(url, token)
        self._send = link.send
        self.close = link.close

    def now(self) -> int:
        return self.info().now

    def info(self) -> StoreInfo:
        """The store's time, and its epoch, which changes when the store is wiped."""
        return self._send(store_calls.store_info(DEFAULT_NAMESPACE))

    def journaling(self) -> Journaling:
        """The name under which the pool journals, and since when; since 0 if it does not journal.

        Raises Conflict if the jobs of the store were moved to another one.
        """
        return self._send(store_calls.journaling(DEFAULT_NAMESPACE))

    def registered(self) -> Mapping[str, RegisteredNode]:
        """The nodes of the journal."""
        return self._send(store_calls.journal_nodes(DEFAULT_NAMESPACE))

    def counts(self) -> Mapping[Queue, Counts]:
        """How many jobs each queue has."""
        return self._send(calls.queue_counts(None))

    def get(self, queue: Queue, ids: Sequence[str]) -> list[Job | None]:
        lookup = Lookup(queue, ids)
        while call := lookup.next_call():
            lookup.take(self._send(call))
        return lookup.jobs()

    @property
    def journals(self) -> bool:
        """Whether `push` also writes the journal's entries, as a server does; if not, the caller must."""
        return self._link.is_server

    def register(self, node: str) -> None:
        """Register a node that is about to write entries about the store's jobs.

        Does nothing through a server, which has no call for it: entries of ends and adoptions that get lost are made
        again. The same holds for `sign_off` and `forget`.
        """
        self._link.on_store(lambda store: registration.register(store, node))

    def sign_off(self, node: str, last: int) -> None:
        """Note that the node has written its last entry."""
        self._link.on_store(lambda store: registration.sign_off(store, node, last))

    def forget(self, nodes: Iterable[str]) -> None:
        """Remove the registrations of nodes of which no entry can be missing any more."""
        self._link.on_store(lambda store: registration.forget(store, nodes))

    def push(self, queue: Queue, requests: Sequence[Push]) -> Sequence[Pushed | DuetimeError]:
        """Each request has one job; a job that exists is kept."""
        return self._send(store_calls.put_back(queue, requests))

    def raise_joins(self, queue: Queue, joins: Sequence[JoinCount]) -> None:
        """As the store's: idempotent, and nothing follows from it."""
        self._send(store_calls.raise_joins(queue, joins))
