"""One example per endpoint, as messages, so that an example that is not valid cannot be written.

`says` describes each status of success.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date

import msgspec
from msgspec import Raw

from duetime.model.job import Event, IfExists, Moved, QueueTotals, State, Totals
from duetime.model.topic import Method, Status, Success
from duetime.stores.base import QueueRules
from duetime.wire import messages as m
from duetime.wire.job_output import OutputOut
from duetime.wire.worker_beats import RunningJobOut, WorkerOut, WorkersOut

NOW = 1_800_000_000_000
MINUTE = 60_000

LEASE = m.LeaseRef("welcome-17", NOW, 1)
DELIVERY = m.DeliveryOut(
    queue="mail",
    lease=LEASE,
    due_at=NOW + MINUTE,
    lease_until=NOW + 2 * MINUTE,
    priority="normal",
    tries=5,
    used=1,
    body=Raw(b'{"to":"ann"}'),
)
JOB = m.JobOut(
    namespace="shop",
    queue="mail",
    id="welcome-17",
    born=NOW,
    state=State.DELAYED,
    due_at=NOW + MINUTE,
    priority="normal",
    tries=5,
    body=Raw(b'{"to":"ann"}'),
)
JOB_IN = m.JobIn(body=Raw(b'{"to":"ann"}'), id="welcome-17", delay="1m")
QUEUE = m.QueueOut("shop", "mail", m.CountsOut(delayed=1, ready=0, leased=2, dead=0, expired=0, now=NOW), QueueRules())

TOPIC = m.TopicOut(
    namespace="shop",
    topic="mail",
    id=1,
    callback="https://shop.example.com/mail",
    method=Method.GET,
    delay_ms=10 * MINUTE,
    timeout_ms=3000,
    schedule="odd-minutes",
    cap=11,
    success=Success.STATUS,
    priority="normal",
    status=Status.ONLINE,
    in_flight=100,
    verify_tls=True,
    signed=False,
    totals=m.TopicCountsOut(written=3, notified=2),
    retry_if="{res.code} != 200",
)


SCHEDULE = m.ScheduleOut(
    namespace="shop",
    name="nightly-report",
    schedule="cron 0 3 * * * Europe/Berlin",
    queue="reports",
    task="shop.report",
    missed="last",
    overlap="skip",
    paused=False,
    declared=False,
    next_at=NOW + 60 * MINUTE,
    last_at=NOW - 60 * MINUTE,
    last_id=f"nightly-report@{NOW - 60 * MINUTE}",
    last_state="",
    arguments={"kind": Raw(b'"short"')},
)


def _moved(event: Event, due_at: int = 0, reason: str = "") -> m.ResultOut:
    return m.ResultOut(Moved(event, "welcome-17", NOW, 1, due_at, reason))


ACCEPTED = m.ResultOut(Moved(Event.ACCEPTED, "welcome-17", NOW, due_at=NOW + MINUTE))
CANCELLED = m.ResultOut(Moved(Event.CANCELLED, "welcome-17", NOW))
RESCHEDULED = m.ResultOut(Moved(Event.RESCHEDULED, "welcome-17", NOW, due_at=NOW + 2 * MINUTE))


@dataclass(frozen=True)
class Example:
    says: Mapping[int, str]
    gives: msgspec.Struct
    takes: msgspec.Struct | None = None


EXAMPLES: Mapping[str, Example] = {
    "push": Example(
        {201: "the job was accepted, or it replaced another one", 200: "a job with this id exists and was kept"},
        ACCEPTED,
        m.PushIn(body=Raw(b'{"to":"ann"}'), id="welcome-17", delay="1m"),
    ),
    "push_batch": Example(
        {201: "one result per job, in order; with `atomic` false, check each of them"},
        m.PushedOut([ACCEPTED], NOW),
        m.BatchIn([JOB_IN], IfExists.KEEP),
    ),
    "call": Example(
        {200: "the answer; it was acked, and its queue was purged"},
        m.AnswerOut("sum-4", "01JCQ2Y6W3V5Z8T4B7N9M1K0XA", body=Raw(b'"42"')),
        m.PushIn(body=Raw(b"[40,2]"), id="sum-4"),
    ),
    "cancel": Example(
        {200: "one result per id; empty if there is no such job"},
        m.ResultsOut([CANCELLED, m.ResultOut()]),
        m.IdsIn(["welcome-17", "welcome-18"]),
    ),
    "reschedule": Example(
        {200: "one result per id; an error if it is leased, dead or would expire; empty if there is no such job"},
        m.ResultsOut([RESCHEDULED]),
        m.RescheduleIn(["welcome-17"], delay="2m"),
    ),
    "cancel_job": Example({200: "the job was removed"}, CANCELLED),
    "reschedule_job": Example({200: "the job has a new due time"}, RESCHEDULED, m.WhenIn(delay="2m")),
    "reserve": Example(
        {200: "the leased jobs; an empty list if none was ready in time"},
        m.DeliveriesOut([DELIVERY]),
        m.ReserveIn(limit=1, ttr="1m", wait="500ms"),
    ),
    "reserve_many": Example(
        {200: "the leased jobs; an empty list if none was ready in time"},
        m.DeliveriesOut([DELIVERY]),
        m.ReserveManyIn(limit=1, ttr="1m", wait="500ms", queues=["urgent", "mail"]),
    ),
    "ack": Example(
        {200: "one result per lease; an error for each lost one of `leases`; empty if the job was gone"},
        m.ResultsOut([_moved(Event.ACKED)]),
        m.AckIn(LEASE),
    ),
    "finish": Example(
        {200: "one result per finish; an error if the lease is lost, empty if the job was already gone"},
        m.FinishesOut(
            [
                m.FinishedOut(
                    Moved(Event.ACKED, "welcome-17", NOW, 1),
                    then=[Moved(Event.ACCEPTED, "welcome-17~>bill", NOW + 1, due_at=NOW)],
                    now=NOW,
                )
            ]
        ),
        m.FinishesIn(
            [m.FinishIn(LEASE, [m.JobIn(id="welcome-17~>bill", body=Raw(b"{}"))], Raw(b'{"sum":42}'), result_ttl="1h")]
        ),
    ),
    "results": Example(
        {200: "one entry per id, in order; null if no result is kept"},
        m.KeptResultsOut([m.KeptResultOut("welcome-17", NOW, NOW + 60 * MINUTE, Raw(b'{"sum":42}')), None]),
        m.ResultsIn(["welcome-17", "welcome-18"], wait="5s"),
    ),
    "release": Example(
        {200: "the job waits again, or is dead because no tries are left, or has expired"},
        _moved(Event.RELEASED, NOW + MINUTE),
        m.ReleaseIn(LEASE, delay="10s", error="the mail server is down"),
    ),
    "give_back": Example(
        {200: "one result per lease: the job is back in its old position or due after `delay`; an error if it is lost"},
        m.ResultsOut([_moved(Event.GIVEN_BACK, NOW)]),
        m.GiveBackIn(LEASE),
    ),
    "kill": Example(
        {200: "the job is among the dead letters"},
        _moved(Event.DEAD, reason="killed"),
        m.KillIn(LEASE, error="no such address"),
    ),
    "extend": Example({200: "the new end of the lease"}, m.ExtendedOut(NOW + 3 * MINUTE), m.ExtendIn(LEASE, ttr="2m")),
    "get_job": Example({200: "the job"}, JOB),
    "get_output": Example({200: "the lines, the oldest first"}, OutputOut(["40 of 100 rows", "41 of 100 rows"])),
    "get_jobs": Example(
        {200: "the jobs in the order of the ids; null if there is no such job; request the ids in `left_out` again"},
        m.JobsOut([JOB, None]),
        m.IdsIn(["welcome-17", "welcome-18"]),
    ),
    "list_jobs": Example({200: "a page; `cursor` leads to the next one, if there is one"}, m.PageOut([JOB])),
    "get_queue": Example({200: "the counts at one instant; zeros for an unknown queue"}, QUEUE),
    "totals": Example(
        {200: "the events since counting began, and on each of the last 31 days (UTC) that had events"},
        QueueTotals(Totals(accepted=3, delivered=2, acked=2), {date(2026, 11, 15): Totals(accepted=1)}),
    ),
    "due": Example(
        {200: "the number of waiting jobs between each edge and the next"},
        m.HistogramOut([NOW, NOW + MINUTE, NOW + 2 * MINUTE], [0, 1]),
    ),
    "list_queues": Example({200: "every queue that was pushed to or has rules"}, m.QueuesOut([QUEUE])),
    "list_namespaces": Example({200: "every namespace that has queues"}, m.NamespacesOut(["shop"])),
    "get_namespace": Example(
        {200: "the epoch of the store that the namespace's jobs are in, and its time"},
        m.NamespaceOut("shop", "9f2c51d07be4a386", NOW),
    ),
    "list_workers": Example(
        {200: "the workers that reported within the last 25 seconds, with the jobs that they have run longest"},
        WorkersOut(
            [
                WorkerOut(
                    "web-1",
                    4711,
                    "processes",
                    4,
                    "mail",
                    NOW - MINUTE,
                    1,
                    [RunningJobOut("mail", "welcome-42", "shop.send", NOW - 3_000)],
                )
            ],
            NOW,
        ),
    ),
    "journal_nodes": Example(
        {200: "the nodes that write the journal of the pool that the namespace's jobs are in"},
        m.JournalNodesOut(
            [m.JournalNodeOut("web-1-01KA3V4N8C8Q5T7Y9D2E6F4G1H", NOW - MINUTE)], "default", NOW - 60 * MINUTE
        ),
    ),
    "respawn": Example(
        {200: "one result per respawned job; jobs that are not dead are skipped"},
        m.ResultsOut([_moved(Event.RESPAWNED, NOW)]),
        m.RespawnIn(limit=100),
    ),
    "purge": Example({200: "the number of removed jobs"}, m.PurgedOut(3), m.PurgeIn([State.DEAD])),
    "raise_joins": Example(
        {200: "the number of joins whose counts are now at least the given ones"},
        m.JoinsOut(1),
        m.JoinsIn([m.JoinCountIn("report-17~>join", 2, "31d")]),
    ),
    "count": Example({200: "the current counter"}, m.CounterOut(40), m.CountIn("progress/mail/welcome-17", 40, "1d")),
    "get_rules": Example({200: "the current rules"}, QueueRules()),
    "change_rules": Example({200: "the current rules"}, QueueRules(max_jobs=100_000), m.RulesIn(max_jobs=100_000)),
    "pause": Example({200: "the current rules"}, QueueRules(paused=True)),
    "resume": Example({200: "the current rules"}, QueueRules()),
    "list_topics": Example({200: "every topic of the namespace"}, m.TopicsOut([TOPIC])),
    "topic_counters": Example(
        {200: "every counter under php-delayqueue's name, and the sums of all topics"},
        m.CountersOut(
            {
                "redis:default:dq_write_total_nums": 3,
                "redis:default:dq_notify_total_nums": 2,
                "redis:default:dq_del_total_nums": 0,
                "1:total_write": 3,
                "1:total_notfiy": 2,
                "1:total_del": 0,
                "1:tw:20261115": 3,
                "1:tn:20261115": 2,
            },
            m.TopicCountsOut(written=3, notified=2),
            {"20261115": m.TopicCountsOut(written=3, notified=2)},
        ),
    ),
    "add_topic": Example(
        {201: "the topic; its secret, if it has one, is shown only in this answer"},
        TOPIC,
        m.TopicIn(topic="mail", callback="https://shop.example.com/mail", delay="10m", retry_if="{res.code} != 200"),
    ),
    "get_topic": Example({200: "the topic"}, TOPIC),
    "edit_topic": Example({200: "the current topic"}, TOPIC, m.TopicChangeIn(delay="10m")),
    "remove_topic": Example({200: "the removed topic; its jobs go to the dead letters when they fall due"}, TOPIC),
    "put_online": Example({200: "the current topic"}, TOPIC),
    "put_offline": Example({200: "the current topic"}, TOPIC),
    "test_topic": Example(
        {200: "the request that was sent and its answer"},
        m.SampleOut(
            m.SampleRequestOut("GET", "https://shop.example.com/mail?to=ann", {"accept": "*/*"}, ""),
            m.SampleAnswerOut(200, 12, {"content-type": "application/json"}, '{"code":200}'),
            "done",
            'HTTP 200: {"code":200}',
        ),
        m.SampleIn(body=Raw(b'{"to":"ann"}')),
    ),
    "add_job": Example(
        {201: "the job was accepted", 200: "the job replaced the one with this id"},
        ACCEPTED,
        m.AddIn(id="welcome-17", body=Raw(b'{"to":"ann"}')),
    ),
    "list_schedules": Example({200: "every schedule of the namespace, by name"}, m.SchedulesOut([SCHEDULE])),
    "get_schedule": Example({200: "the schedule"}, SCHEDULE),
    "put_schedule": Example(
        {200: "the current schedule"},
        SCHEDULE,
        m.JobScheduleIn(
            queue="reports",
            cron="0 3 * * *",
            tz="Europe/Berlin",
            task="shop.report",
            arguments={"kind": Raw(b'"short"')},
            overlap="skip",
        ),
    ),
    "delete_schedule": Example({200: "the schedule as it was"}, SCHEDULE),
    "run_schedule": Example({200: "the schedule; a run was pushed"}, SCHEDULE),
    "backfill_schedule": Example(
        {200: "the runs were pushed, except those that had been pushed in the last seven days"},
        m.BackfillOut(3, 2),
        m.BackfillIn(since="2026-11-12T00:00:00Z", until="2026-11-15T00:00:00Z"),
    ),
    "pause_schedule": Example({200: "the current schedule"}, SCHEDULE),
    "resume_schedule": Example({200: "the current schedule"}, SCHEDULE),
}
