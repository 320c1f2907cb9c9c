"""Pushes that wait for the caller's commit.

A job that is pushed inside a database transaction may run before the transaction is visible to others, or although it
was rolled back. With a hook, a push inside a transaction is held back until the outermost commit, and dropped at a
rollback, also at that of a savepoint. Outside a transaction it is sent immediately.

    app.after_commit(django())                  # whatever is inside transaction.atomic()
    app.after_commit(sqlalchemy(Session))       # a scoped_session, or any callable that gives the session of now

The handle of a push that is held back has `is_pushed` False. If the push fails later, the commit raises its error: the
transaction is committed, the job is not pushed.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from importlib import import_module
from typing import Any

from duetime.model.job import Event, Moved
from duetime.worker.pusher import Outgoing, Pusher, StoreCaller, UncommittedPush, Work, send_work, send_work_async

log = logging.getLogger("duetime.after_commit")

Hook = Callable[[Callable[[], object]], bool]
"""Takes a function to call after the commit; False if no transaction is open, and the function is not kept."""

KEPT = "duetime_kept_back"
"""The key of a session's info: each push that is held back, with the transaction that it was made in."""


class AfterCommit:
    """A Pusher in front of another one. `caller` sends what it held back."""

    def __init__(self, inner: Pusher, caller: StoreCaller, hook: Hook) -> None:
        self._inner = inner
        self._caller = caller
        self._hook = hook
        self._late: set[asyncio.Task[object]] = set()

    def push(self, many: Sequence[Outgoing]) -> Work[list[Moved]]:
        answers = [UncommittedPush(Event.ACCEPTED, one.job.id, 0, due_at=one.job.due_at or 0) for one in many]
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None

        def push_now() -> None:
            if loop is None:
                send_work(self._caller, self._push_held(many, answers))
            else:
                self._push_later(loop, send_work_async(self._caller, self._push_held(many, answers)))

        if self._hook(push_now):
            return list(answers)
        return (yield from self._inner.push(many))

    def _push_held(self, many: Sequence[Outgoing], answers: Sequence[UncommittedPush]) -> Work[None]:
        moved = yield from self._inner.push(many)
        for answer, one in zip(answers, moved, strict=True):
            answer.pushed.append(one)

    def _push_later(self, loop: asyncio.AbstractEventLoop, pushing: Coroutine[Any, Any, object]) -> None:
        """A commit does not wait for coroutines; what goes wrong is in the log."""
        task = loop.create_task(pushing)
        self._late.add(task)
        task.add_done_callback(self._pushed)

    def _pushed(self, task: asyncio.Task[object]) -> None:
        self._late.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("push_after_commit_failed", exc_info=error)


def django(using: str | None = None) -> Hook:
    """Waits for `transaction.atomic()` on a database, the default one if not named."""
    atomic: Any = import_module("django.db.transaction")  # the caller uses this library, so it is installed

    def hook(push: Callable[[], object]) -> bool:
        if not atomic.get_connection(using).in_atomic_block:
            return False
        atomic.on_commit(push, using=using)
        return True

    return hook


def sqlalchemy(session: Callable[[], Any]) -> Hook:
    """Waits for the commit of the session that `session()` gives: a scoped_session, or a callable of your own.

    An AsyncSession is taken by its `sync_session`.
    """
    event: Any = import_module("sqlalchemy.event")  # the caller uses this library, so it is installed

    def hook(push: Callable[[], object]) -> bool:
        found: Any = session()
        found = getattr(found, "sync_session", found)
        if not found.in_transaction():
            return False
        if KEPT not in found.info:
            found.info[KEPT] = []
            event.listen(found, "after_commit", _committed)
            event.listen(found, "after_soft_rollback", _rolled_back)
        found.info[KEPT].append((found.get_nested_transaction() or found.get_transaction(), push))
        return True

    return hook


def _committed(session: Any) -> None:
    """The end of a savepoint comes here, too."""
    if session.in_nested_transaction():
        return
    pushes, session.info[KEPT] = session.info[KEPT], []
    for _, push in pushes:
        push()


def _rolled_back(session: Any, rolled_back: Any) -> None:
    session.info[KEPT] = [one for one in session.info[KEPT] if not _is_within(one[0], rolled_back)]


def _is_within(transaction: Any, outer: Any) -> bool:
    while transaction is not None:
        if transaction is outer:
            return True
        transaction = transaction.parent
    return False
