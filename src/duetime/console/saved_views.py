"""Filters of the jobs list that somebody saved under a name, for everybody who sees the namespace."""

import logging
from collections.abc import Sequence

import msgspec
from msgspec import Struct
from starlette.responses import Response

from duetime.console.visit import Visit, queue_link
from duetime.model.errors import InvalidRequest
from duetime.model.names import Queue
from duetime.stores.registry import Record

log = logging.getLogger("duetime.console")

KIND = "console-view"
FIELDS = ("state", "text", "since", "until", "attribute")
LONGEST_NAME = 60
MOST = 50


class SavedView(Struct, frozen=True):
    """`query` has the filter as it was typed, so that `since=-1h` stays relative."""

    pool: str
    namespace: str
    queue: str
    name: str
    query: dict[str, str]

    @property
    def link(self) -> str:
        return queue_link(self.pool, Queue(self.namespace, self.queue), "jobs", **self.query)

    @property
    def key(self) -> str:
        return "/".join((self.pool, self.namespace, self.queue, self.name))


def saved_views(visit: Visit, pool: str = "", queue: Queue | None = None) -> Sequence[SavedView]:
    """The views that the visitor sees, by name; of one queue, or of all."""
    found = map(_read, visit.parts.registry_copy.list_records(KIND))
    seen = [one for one in found if one is not None and visit.sees(one.pool, one.namespace)]
    return sorted(
        (one for one in seen if queue is None or (one.pool, one.namespace, one.queue) == (pool, *queue)),
        key=lambda one: (one.name, one.key),
    )


def _read(record: Record) -> SavedView | None:
    try:
        return msgspec.json.decode(record.value, type=SavedView)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        log.warning("view_unreadable", extra={"view": record.key})
        return None


def _view(visit: Visit) -> SavedView:
    queue, name = visit.queue(), " ".join(visit.field("name").split())
    if not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raise InvalidRequest(visit.say("views.needs_name", most=LONGEST_NAME))
    query = {field: visit.field(field) for field in FIELDS if visit.field(field)}
    return SavedView(visit.pool(), *queue, name, query)


async def save_view(visit: Visit) -> Response:
    view = _view(visit)
    if len(saved_views(visit, view.pool, visit.queue())) >= MOST:
        raise InvalidRequest(visit.say("views.too_many", most=MOST))
    await visit.parts.pools.registry.put(KIND, view.key, msgspec.json.encode(view))
    await visit.parts.registry_copy.refresh()
    await visit.log("save-view", visit.queue(), view.name)
    return visit.go(view.link, visit.say("views.saved", name=view.name))


async def delete_view(visit: Visit) -> Response:
    view = _view(visit)
    await visit.parts.pools.registry.delete(KIND, view.key)
    await visit.parts.registry_copy.refresh()
    await visit.log("delete-view", visit.queue(), view.name)
    return visit.go(queue_link(view.pool, visit.queue(), "jobs"), visit.say("views.deleted", name=view.name))
