"""Schedules: jobs that are pushed at an interval or by a cron expression. The name in the path is `job_id`."""

from msgspec import UNSET

from duetime.engine.schedules import Schedules
from duetime.model.clock import instant_ms
from duetime.protocols.v1.request import NativeRequest, Response
from duetime.wire.messages import BackfillIn, JobScheduleIn, SchedulesOut


async def list_schedules(request: NativeRequest[None, None]) -> Response:
    return Response(200, SchedulesOut(await Schedules(request.engine).list_schedules(request.queue.namespace)))


async def get_schedule(request: NativeRequest[None, None]) -> Response:
    return Response(200, await Schedules(request.engine).get(request.queue.namespace, request.job_id))


async def put_schedule(request: NativeRequest[JobScheduleIn, None]) -> Response:
    schedules = Schedules(request.engine)
    return Response(200, await schedules.put(request.queue.namespace, request.job_id, request.message))


async def delete_schedule(request: NativeRequest[None, None]) -> Response:
    return Response(200, await Schedules(request.engine).delete(request.queue.namespace, request.job_id))


async def run_schedule(request: NativeRequest[None, None]) -> Response:
    return Response(200, await Schedules(request.engine).run(request.queue.namespace, request.job_id))


async def backfill_schedule(request: NativeRequest[BackfillIn, None]) -> Response:
    since, until = request.message.since, request.message.until
    span = instant_ms(since), None if until is UNSET else instant_ms(until)
    return Response(200, await Schedules(request.engine).backfill(request.queue.namespace, request.job_id, *span))


async def pause_schedule(request: NativeRequest[None, None]) -> Response:
    return Response(200, await Schedules(request.engine).pause(request.queue.namespace, request.job_id))


async def resume_schedule(request: NativeRequest[None, None]) -> Response:
    return Response(200, await Schedules(request.engine).resume(request.queue.namespace, request.job_id))
