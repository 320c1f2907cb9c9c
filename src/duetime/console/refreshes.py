"""What an open page gets when it asks for itself again: nothing, the lines that have changed, or the whole page.

A page is rendered once a second for all visitors with the same view. What was sent is remembered for a while, so that
the next answer can name lines that the page has instead of sending them; a page that another process has rendered
before, or that nobody remembers, is sent whole.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from starlette.responses import Response

from duetime.console.visit import Visit

SHARED_S = 1.0
MOST_KEPT = 8_388_608
"""Characters of pages that are remembered."""

Handler = Callable[[Visit], Awaitable[Response]]
Changes = list[str | list[int]]


class Refreshes:
    def __init__(self) -> None:
        self._rendered: dict[tuple[object, ...], tuple[float, asyncio.Task[Response]]] = {}
        self._sent: dict[str, list[str]] = {}
        self._size = 0

    async def answer(self, visit: Visit, handler: Handler, *, is_shared: bool) -> Response:
        """`is_shared`: the page is the same for all visitors with the same view."""
        response = await (self._share(visit, handler) if is_shared else handler(visit))
        seen, digest = visit.request.headers.get("x-seen", ""), response.headers.get("x-seen", "")
        if not digest:
            return response
        if seen == digest:
            return Response(status_code=204)
        before, after = self._sent.get(seen), self._remember(digest, response)
        if before is None:
            return response
        return Response(msgspec.json.encode(find_changes(before, after)), headers={"x-changes": seen})

    async def _share(self, visit: Visit, handler: Handler) -> Response:
        key, now = visit.view(), time.monotonic()
        known = self._rendered.get(key)
        if known is None or known[0] < now:
            self._rendered = {view: one for view, one in self._rendered.items() if one[0] >= now}
            known = self._rendered[key] = now + SHARED_S, asyncio.create_task(_answer(handler(visit)))
        return await asyncio.shield(known[1])

    def _remember(self, digest: str, response: Response) -> list[str]:
        if digest not in self._sent:
            text = bytes(response.body).decode()
            self._sent[digest] = text.split("\n")
            self._size += len(text)
            while self._size > MOST_KEPT and len(self._sent) > 1:
                oldest = self._sent.pop(next(iter(self._sent)))
                self._size -= sum(map(len, oldest)) + len(oldest) - 1
        return self._sent[digest]


async def _answer(page: Awaitable[Response]) -> Response:
    return await page


def find_changes(before: Sequence[str], after: Sequence[str]) -> Changes:
    """`after` as new lines, and as stretches [from, to] of the lines of `before`."""
    places = {line: place for place, line in enumerate(before)}
    changes: Changes = []
    at = 0
    for line in after:
        if at >= len(before) or before[at] != line:
            place = places.get(line)
            if place is None:
                changes.append(line)
                at += 1  # most often it replaces one line
                continue
            at = place
        last = changes[-1] if changes else ""
        if isinstance(last, list) and last[1] == at:
            last[1] += 1
        else:
            changes.append([at, at + 1])
        at += 1
    return changes
