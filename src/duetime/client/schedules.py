# Generated from async_schedules.py by tools/blocking_client.py: change that file and run the tool again.
"""Schedules through the SDK: jobs that are pushed at an interval or by a cron expression.

    client.schedules.put("nightly-report", queue="reports", cron="0 3 * * *", task="shop.report")
    client.schedules.put("rates", queue="rates", every="15m", body=b"refresh", overlap="skip")

Fields are those of `JobScheduleIn`. The servers of the pool run them, and workers that use the store directly.
"""

from typing import Any

from duetime.client import schedule_calls
from duetime.client.client import Client
from duetime.model.clock import Instant
from duetime.wire.messages import BackfillOut, ScheduleOut


class Schedules:
    """The schedules of a client's namespace, including those that programs declare for their tasks."""

    def __init__(self, client: Client) -> None:
        self._send = client.send
        self._namespace = client.namespace

    def list_schedules(self) -> list[ScheduleOut]:
        """Return all schedules of the namespace, ordered by name."""
        return self._send(schedule_calls.list_schedules(self._namespace))

    def get(self, name: str) -> ScheduleOut:
        """Return a schedule. Raises ScheduleNotFound."""
        return self._send(schedule_calls.get(self._namespace, name))

    def put(self, name: str, **fields: Any) -> ScheduleOut:
        """Create or replace the schedule with this name. Raises InvalidRequest, InvalidTime, ScheduleDeclared."""
        return self._send(schedule_calls.put(self._namespace, name, schedule_calls.schedule_in(fields)))

    def delete(self, name: str) -> ScheduleOut:
        """Delete a schedule. The jobs of its past runs stay. Raises ScheduleNotFound."""
        return self._send(schedule_calls.delete(self._namespace, name))

    def run(self, name: str) -> ScheduleOut:
        """Run a schedule now, in addition to its regular runs. Raises ScheduleNotFound."""
        return self._send(schedule_calls.run(self._namespace, name))

    def backfill(self, name: str, *, since: Instant, until: Instant | None = None) -> BackfillOut:
        """Push the runs of a span of the past, at most 500, except those that were pushed in the last seven days.
        `until` is now if it is not given. Raises ScheduleNotFound, InvalidRequest.
        """
        return self._send(schedule_calls.backfill(self._namespace, name, since, until))

    def pause(self, name: str) -> ScheduleOut:
        """Start no runs until `resume`. Raises ScheduleNotFound."""
        return self._send(schedule_calls.pause(self._namespace, name))

    def resume(self, name: str) -> ScheduleOut:
        """Continue with the next run. Runs of the time of the pause do not happen. Raises ScheduleNotFound."""
        return self._send(schedule_calls.resume(self._namespace, name))
