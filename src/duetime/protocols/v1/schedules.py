"""Schedules: jobs that are pushed at an interval or by a cron expression. The name in the path is `job_id`."""

from collections.abc import Awaitable, Callable

from msgspec import UNSET

from duetime.engine.schedules import Schedules
from duetime.model.clock import instant_ms
from duetime.protocols.v1.request import AnyRequest, Handler, NativeRequest, Response
from duetime.wire.messages import BackfillIn, JobScheduleIn, ScheduleOut, SchedulesOut


async def list_schedules(request: NativeRequest[None, None]) -> Response:
    return Response(200, SchedulesOut(await Schedules(request.engine).list_schedules(request.queue.namespace)))


async def put_schedule(request: NativeRequest[JobScheduleIn, None]) -> Response:
    schedules = Schedules(request.engine)
    return Response(200, await schedules.put(request.queue.namespace, request.job_id, request.message))


async def backfill_schedule(request: NativeRequest[BackfillIn, None]) -> Response:
    since, until = request.message.since, request.message.until
    span = instant_ms(since), None if until is UNSET else instant_ms(until)
    return Response(200, await Schedules(request.engine).backfill(request.queue.namespace, request.job_id, *span))


def _on_named(verb: Callable[[Schedules, str, str], Awaitable[ScheduleOut]]) -> Handler:
    """Handles requests that have nothing but the name of a schedule."""

    async def handle(request: AnyRequest) -> Response:
        return Response(200, await verb(Schedules(request.engine), request.queue.namespace, request.job_id))

    return handle


get_schedule, delete_schedule = _on_named(Schedules.get), _on_named(Schedules.delete)
run_schedule, pause_schedule, resume_schedule = map(_on_named, (Schedules.run, Schedules.pause, Schedules.resume))
