"""Calls about schedules: jobs that are pushed at an interval or by a cron expression. No I/O."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Raw

from duetime.client import checks
from duetime.client.call import Call, Request
from duetime.client.job_building import encode_body, encode_json
from duetime.client.topic_calls import read_fields
from duetime.engine.schedules import ScheduleRunner, Schedules
from duetime.model.clock import Instant, duration_ms, instant_ms
from duetime.model.names import check_id
from duetime.wire import convert
from duetime.wire.messages import BackfillIn, BackfillOut, JobScheduleIn, ScheduleOut, SchedulesOut


def list_schedules(namespace: str) -> Call[list[ScheduleOut]]:
    return Call(
        lambda: Request("GET", _path(namespace)),
        lambda reply: msgspec.json.decode(reply, type=SchedulesOut).schedules,
        lambda engine: Schedules(engine).list_schedules(namespace),
        repeatable=True,
    )


def get(namespace: str, name: str) -> Call[ScheduleOut]:
    return _one("GET", namespace, name, lambda schedules: schedules.get(namespace, name), repeatable=True)


def schedule_in(fields: Mapping[str, Any]) -> JobScheduleIn:
    """`body` is any body of a job, the values of `arguments` become JSON. Raises InvalidRequest."""
    fields = dict(fields)
    if "body" in fields:
        value, b64 = convert.write_body(encode_body(fields.pop("body")))
        fields |= {"body_b64": b64} if value is UNSET else {"body": value}
    if "arguments" in fields:
        checks.instance("arguments", fields["arguments"], Mapping)
        fields["arguments"] = {one: Raw(encode_json(value)) for one, value in fields["arguments"].items()}
    for one in ("every", "ttl"):
        if one in fields:
            fields[one] = f"{duration_ms(fields[one])}ms"
    return read_fields(fields, JobScheduleIn)


def put(namespace: str, name: str, message: JobScheduleIn) -> Call[ScheduleOut]:
    body = msgspec.json.encode(message)
    return _one(
        "PUT", namespace, name, lambda schedules: schedules.put(namespace, name, message), body=body, repeatable=True
    )


def delete(namespace: str, name: str) -> Call[ScheduleOut]:
    return _one("DELETE", namespace, name, lambda schedules: schedules.delete(namespace, name))


def run(namespace: str, name: str) -> Call[ScheduleOut]:
    return _one("POST", namespace, name, lambda schedules: schedules.run(namespace, name), "run")


def backfill(namespace: str, name: str, since: Instant, until: Instant | None) -> Call[BackfillOut]:
    first, end = instant_ms(since), None if until is None else instant_ms(until)
    body = msgspec.json.encode(BackfillIn(since=first, until=UNSET if end is None else end))
    path = _path(namespace, check_id(name, "schedule name"), "backfill")
    return Call(
        lambda: Request("POST", path, body),
        lambda reply: msgspec.json.decode(reply, type=BackfillOut),
        lambda engine: Schedules(engine).backfill(namespace, name, first, end),
        repeatable=True,
    )


def pause(namespace: str, name: str) -> Call[ScheduleOut]:
    return _one("POST", namespace, name, lambda one: one.pause(namespace, name), "pause", repeatable=True)


def resume(namespace: str, name: str) -> Call[ScheduleOut]:
    return _one("POST", namespace, name, lambda one: one.resume(namespace, name), "resume", repeatable=True)


def run_due(runner: ScheduleRunner, namespace: str) -> Call[float | None]:
    """Push the runs that are due; answers the seconds until the next check. A server does it by itself, so that the
    answer over HTTP is None.
    """
    return Call(lambda: Request("GET", f"/v1/namespaces/{quote(namespace, safe='')}"), lambda _: None, runner.run_once)


def _one(
    method: str,
    namespace: str,
    name: str,
    work: Callable[[Schedules], Awaitable[ScheduleOut]],
    *verb: str,
    body: bytes = b"",
    repeatable: bool = False,
) -> Call[ScheduleOut]:
    path = _path(namespace, check_id(name, "schedule name"), *verb)
    return Call(
        lambda: Request(method, path, body),
        lambda reply: msgspec.json.decode(reply, type=ScheduleOut),
        lambda engine: work(Schedules(engine)),
        repeatable,
    )


def _path(namespace: str, *rest: str) -> str:
    return "/".join(["/v1/namespaces", *(quote(part, safe="") for part in (namespace, "schedules", *rest))])
