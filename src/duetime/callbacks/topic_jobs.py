"""Adds, shows and removes the jobs of topics by topic and id, for the protocols.

These are php-delayqueue's three commands without its protocol. A job takes its delay and priority from its topic, and
its tries are unlimited, because the topic's cap ends them; adding it again under the same id replaces it. Every
request writes a line to the log `duetime.request`, every callback one to `duetime.notify`; both name topic, namespace
and id, so that the two can be compared.
"""

import logging
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from datetime import datetime, tzinfo
from typing import Any

import msgspec

from duetime.callbacks.request import clock_text, fields_of
from duetime.callbacks.topic_registry import TopicAddress, TopicRegistry
from duetime.engine.engine import Engine
from duetime.model.clock import SystemClock
from duetime.model.errors import DuetimeError, InvalidTime, JobNotFound, TopicOffline
from duetime.model.job import IfExists, Moved, NewJob
from duetime.model.names import check_id
from duetime.model.topic import Status, Topic

request_log = logging.getLogger("duetime.request")

UNLIMITED = 0

Body = Mapping[str, Any] | bytes
"""Fields, or bytes, which may be a JSON object with fields."""


class TopicJobs:
    """`zone` is the time zone of times that name none; None stands for the server's own."""

    def __init__(self, engine: Callable[[str], Engine], topics: TopicRegistry, *, zone: tzinfo | None = None) -> None:
        self._engine = engine
        self._topics = topics
        self._zone = zone
        self._clock = SystemClock()

    async def add(
        self,
        address: TopicAddress,
        job_id: str,
        body: Body,
        *,
        fix_time: str = "",
        due_at: int | None = None,
    ) -> Moved:
        """Add a job, or replace the one with this id. It is due at `fix_time` (`Y-m-d H:i:s`) or `due_at`, else after
        the topic's delay.

        Raises TopicNotFound, TopicOffline, InvalidTime and what a push raises.
        """
        with _logged_refusal("add", address, job_id):
            topic = await self._topics.find(address)
            if topic.status is not Status.ONLINE:
                raise TopicOffline.of_queue()
            at = read_clock_text(fix_time, self._zone) if fix_time else due_at
            job = self._job(topic, check_id(job_id), body, at)
            [moved] = (await self._engine(address.pool).push(address.queue, [job], if_exists=IfExists.REPLACE)).jobs
        _log("added", address, job_id, due_at=moved.due_at, moved=str(moved.event))
        return moved

    def _job(self, topic: Topic, job_id: str, body: Body, at: int | None) -> NewJob:
        kept = body if isinstance(body, bytes) else msgspec.json.encode(body)
        if topic.php_fields and (fields := fields_of(kept or b"{}")) is not None:
            now = self._clock.now_ms()
            fields["notify_time"] = clock_text(at if at is not None else now + topic.delay_ms, self._zone)
            fields.setdefault("dq_set_time", clock_text(now, self._zone))
            kept = msgspec.json.encode(fields)
        delay_ms = 0 if at is not None else topic.delay_ms
        return NewJob(job_id, kept, delay_ms=delay_ms, due_at=at, tries=UNLIMITED, priority=topic.priority)

    async def get(self, address: TopicAddress, job_id: str) -> bytes:
        """The body as it is stored, also while the topic is offline. Raises JobNotFound."""
        with _logged_refusal("get", address, job_id):
            [job] = await self._engine(address.pool).store.get(address.queue, [check_id(job_id)])
            if job is None:
                raise JobNotFound.of(job_id, address.queue)
        _log("got", address, job_id)
        return job.body

    async def delete(self, address: TopicAddress, job_id: str) -> Moved:
        """Remove a job in any state, also while the topic is offline. Raises JobNotFound."""
        with _logged_refusal("delete", address, job_id):
            [moved] = await self._engine(address.pool).cancel(address.queue, [job_id])
            if moved is None:
                raise JobNotFound.of(job_id, address.queue)
        _log("deleted", address, job_id)
        return moved


def read_clock_text(text: str, zone: tzinfo | None) -> int:
    """`2026-11-15 09:00:00` as epoch milliseconds. Raises InvalidTime."""
    try:
        at = datetime.strptime(text.strip(), "%Y-%m-%d %H:%M:%S")
        return int(at.replace(tzinfo=zone).timestamp()) * 1000
    except (ValueError, OverflowError):
        raise InvalidTime(f"fix_time is written 2026-11-15 09:00:00, not {text[:40]!r}") from None


@contextmanager
def _logged_refusal(verb: str, address: TopicAddress, job_id: str) -> Generator[None]:
    try:
        yield
    except DuetimeError as error:
        _log(f"{verb}_refused", address, job_id, why=error.code)
        raise


def _log(event: str, address: TopicAddress, job_id: str, **fields: Any) -> None:
    if request_log.isEnabledFor(logging.INFO):
        known = {"topic": address.queue.name, "namespace": address.queue.namespace, "id": job_id}
        request_log.info(event, extra={**known, **fields})
