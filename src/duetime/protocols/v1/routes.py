"""Every endpoint on one screen.

The application dispatches by this table, and the OpenAPI document and the page at /v1/docs are drawn from it. A test
compares it with docs/protocol.md. Two more addresses, the document and the page, need no token (`openapi.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from duetime.model.errors import (
    BodyTooLarge,
    DuetimeError,
    ExpiresBeforeDue,
    Forbidden,
    InvalidCondition,
    InvalidId,
    InvalidTime,
    JobDead,
    JobExists,
    JobNotFound,
    JobRunning,
    JournalFull,
    LeaseLost,
    MarkMismatch,
    NoAnswer,
    QueueFull,
    ScheduleDeclared,
    ScheduleNotFound,
    StoreFull,
    TopicExists,
    TopicNotFound,
    TopicOffline,
)
from duetime.model.job import QueueTotals
from duetime.protocols.rate_limits import Side
from duetime.protocols.tokens import Access
from duetime.protocols.v1 import administration, consumers, producers, schedules, topics, views
from duetime.protocols.v1.request import CallQuery, DueQuery, Handler, ListQuery, QueuesQuery, V1Operation
from duetime.stores.base import QueueRules
from duetime.wire import messages as m
from duetime.wire.job_output import OutputOut
from duetime.wire.worker_beats import WorkersOut

NAMESPACE = "/v1/namespaces/{namespace}"
QUEUE = "/v1/queues/{namespace}/{queue}"
JOB = QUEUE + "/jobs/{id}"

TOPICS = NAMESPACE + "/topics"
TOPIC = TOPICS + "/{topic}"
SCHEDULES = NAMESPACE + "/schedules"
SCHEDULE = SCHEDULES + "/{schedule}"

Errors = tuple[type[DuetimeError], ...]

PUSH_ERRORS: Errors = (
    InvalidId,
    InvalidTime,
    ExpiresBeforeDue,
    BodyTooLarge,
    JobExists,
    QueueFull,
    TopicOffline,
    StoreFull,
    JournalFull,
)
LEASE_ERRORS: Errors = (InvalidId, LeaseLost)


R, W, A = (Access.READ,), (Access.WRITE,), (Access.ADMIN,)


@dataclass(frozen=True)
class Route:
    """One endpoint. `refuses` are its own errors, without those that every request can get.

    A token must allow all that the route `needs`. `takes` is the message in the body; an `optional` one may be left
    out. `keyed`: takes an Idempotency-Key. `ends_delivery`: finishes a delivery or renews its lease. `operation` serves
    requests like one that was served on the fast path.
    """

    method: str
    path: str
    name: str
    summary: str
    needs: tuple[Access, ...]
    handle: Handler
    gives: Mapping[int, type[msgspec.Struct]]
    takes: type[msgspec.Struct] | None = None
    query: type[msgspec.Struct] | None = None
    refuses: Errors = ()
    optional: bool = False
    keyed: bool = False
    ends_delivery: bool = False
    operation: type[V1Operation[Any]] | None = None

    @property
    def spends(self) -> Side | None:
        """The limit of its token that a request counts against. None for the end of a delivery: if that were refused,
        the job would be delivered again.
        """
        if self.ends_delivery:
            return None
        return Side.READ if self.needs == R else Side.WRITE


PUSHED = {201: m.ResultOut, 200: m.ResultOut}
RESULT = {200: m.ResultOut}
RESULTS = {200: m.ResultsOut}
DELIVERIES = {200: m.DeliveriesOut}
RULES = {200: QueueRules}
ONE_TOPIC = {200: m.TopicOut}
ONE_SCHEDULE = {200: m.ScheduleOut}

# fmt: off
ROUTES: tuple[Route, ...] = (
    Route("POST", QUEUE + "/jobs", "push", "Push a job", W, producers.push, PUSHED, m.PushIn,
          refuses=(*PUSH_ERRORS, MarkMismatch), keyed=True, operation=producers.PushOperation),
    Route("POST", QUEUE + "/batch", "push_batch", "Push up to 1,000 jobs", W, producers.push_batch, {201: m.PushedOut},
          m.BatchIn, refuses=(*PUSH_ERRORS, MarkMismatch), keyed=True),
    Route("POST", QUEUE + "/call", "call", "Push a job and wait for its answer", (*W, *R), consumers.call,
          {200: m.AnswerOut}, m.PushIn, CallQuery, (*PUSH_ERRORS, NoAnswer)),
    Route("POST", QUEUE + "/cancel", "cancel", "Remove jobs by id", W, producers.cancel, RESULTS, m.IdsIn,
          refuses=(InvalidId,)),
    Route("POST", QUEUE + "/reschedule", "reschedule", "Change when jobs are due", W, producers.reschedule, RESULTS,
          m.RescheduleIn, refuses=(InvalidId, InvalidTime)),
    Route("DELETE", JOB, "cancel_job", "Remove one job", W, producers.cancel_job, RESULT,
          refuses=(InvalidId, JobNotFound)),
    Route("PATCH", JOB, "reschedule_job", "Change when one job is due", W, producers.reschedule_job, RESULT, m.WhenIn,
          refuses=(InvalidId, InvalidTime, ExpiresBeforeDue, JobNotFound, JobRunning, JobDead)),

    Route("POST", QUEUE + "/reserve", "reserve", "Lease jobs", R, consumers.reserve, DELIVERIES, m.ReserveIn,
          refuses=(InvalidTime,), optional=True, operation=consumers.ReserveOperation),
    Route("POST", NAMESPACE + "/reserve", "reserve_many", "Lease jobs from several queues in order", R,
          consumers.reserve_many, DELIVERIES, m.ReserveManyIn, refuses=(InvalidTime,)),
    Route("POST", QUEUE + "/ack", "ack", "Finish jobs", R, consumers.ack, RESULTS, m.AckIn,
          refuses=LEASE_ERRORS, ends_delivery=True, operation=consumers.AckOperation),
    Route("POST", QUEUE + "/finish", "finish", "Finish jobs, push follow-up jobs, keep results", R, consumers.finish,
          {200: m.FinishesOut}, m.FinishesIn, refuses=(InvalidId, InvalidTime, BodyTooLarge, Forbidden),
          ends_delivery=True),
    Route("POST", QUEUE + "/results", "results", "Read kept results, and wait for them", R, consumers.results,
          {200: m.KeptResultsOut}, m.ResultsIn, refuses=(InvalidId, InvalidTime)),
    Route("POST", QUEUE + "/release", "release", "Give a job back for another try", R, consumers.release, RESULT,
          m.ReleaseIn, refuses=(*LEASE_ERRORS, InvalidTime), ends_delivery=True),
    Route("POST", QUEUE + "/give_back", "give_back", "Undo deliveries", R, consumers.give_back, RESULTS, m.GiveBackIn,
          refuses=(*LEASE_ERRORS, InvalidTime), ends_delivery=True),
    Route("POST", QUEUE + "/kill", "kill", "Move a job to the dead letters", R, consumers.kill, RESULT, m.KillIn,
          refuses=LEASE_ERRORS, ends_delivery=True),
    Route("POST", QUEUE + "/extend", "extend", "Renew a lease", R, consumers.extend, {200: m.ExtendedOut}, m.ExtendIn,
          refuses=(*LEASE_ERRORS, InvalidTime), ends_delivery=True),

    Route("GET", JOB, "get_job", "Read one job", R, views.get_job, {200: m.JobOut},
          refuses=(InvalidId, JobNotFound)),
    Route("GET", JOB + "/output", "get_output", "Read the last lines that a running task logged", R, views.get_output,
          {200: OutputOut}, refuses=(InvalidId,)),
    Route("POST", QUEUE + "/get", "get_jobs", "Read jobs by id", R, views.get_jobs, {200: m.JobsOut}, m.IdsIn,
          refuses=(InvalidId,)),
    Route("GET", QUEUE + "/jobs", "list_jobs", "Page through the jobs in a state", R, views.list_jobs,
          {200: m.PageOut}, query=ListQuery),
    Route("GET", QUEUE, "get_queue", "Read a queue's counts and rules", R, views.get_queue, {200: m.QueueOut}),
    Route("GET", QUEUE + "/totals", "totals", "Count what happened in a queue", R, views.totals,
          {200: QueueTotals}),
    Route("GET", QUEUE + "/due", "due", "Count jobs by their due time", R, views.due, {200: m.HistogramOut},
          query=DueQuery, refuses=(InvalidTime,)),
    Route("GET", "/v1/queues", "list_queues", "List all queues with counts and rules", R, views.list_queues,
          {200: m.QueuesOut}, query=QueuesQuery),
    Route("GET", "/v1/namespaces", "list_namespaces", "List the namespaces that have queues", A, views.list_namespaces,
          {200: m.NamespacesOut}),
    Route("GET", NAMESPACE, "get_namespace", "Read the epoch and the time of a store", R, views.get_namespace,
          {200: m.NamespaceOut}),
    Route("GET", NAMESPACE + "/workers", "list_workers", "List workers and their jobs", R, views.list_workers,
          {200: WorkersOut}),
    Route("GET", NAMESPACE + "/journal-nodes", "journal_nodes", "List the journal nodes of a pool", R,
          views.journal_nodes, {200: m.JournalNodesOut}),

    Route("POST", QUEUE + "/respawn", "respawn", "Make dead letters ready again", A, administration.respawn, RESULTS,
          m.RespawnIn, refuses=(InvalidId, InvalidTime), optional=True),
    Route("POST", QUEUE + "/purge", "purge", "Remove jobs by state", A, administration.purge, {200: m.PurgedOut},
          m.PurgeIn),
    Route("POST", QUEUE + "/joins", "raise_joins", "Repair the counts of joins", W, administration.raise_joins,
          {200: m.JoinsOut}, m.JoinsIn, refuses=(InvalidId, InvalidTime, StoreFull)),
    Route("POST", NAMESPACE + "/counters", "count", "Add to a counter that workers share, or read it", R,
          administration.add_to_counter, {200: m.CounterOut}, m.CountIn, refuses=(InvalidTime, StoreFull)),
    Route("GET", QUEUE + "/rules", "get_rules", "Read the queue's rules", R, administration.get_rules,
          RULES),
    Route("PATCH", QUEUE + "/rules", "change_rules", "Change the queue's rules", A, administration.change_rules, RULES,
          m.RulesIn, refuses=(StoreFull,)),
    Route("POST", QUEUE + "/pause", "pause", "Stop deliveries", A, administration.pause, RULES,
          refuses=(StoreFull,)),
    Route("POST", QUEUE + "/resume", "resume", "Resume deliveries", A, administration.resume, RULES,
          refuses=(StoreFull,)),

    Route("GET", TOPICS, "list_topics", "List the topics of a namespace, with their counts", R, topics.list_topics,
          {200: m.TopicsOut}),
    Route("GET", NAMESPACE + "/topic-counters", "topic_counters", "Read php-delayqueue's counters of a namespace", R,
          topics.topic_counters, {200: m.CountersOut}),
    Route("POST", TOPICS, "add_topic", "Add a topic", A, topics.add_topic, {201: m.TopicOut}, m.TopicIn,
          refuses=(InvalidTime, InvalidCondition, TopicExists, StoreFull)),
    Route("GET", TOPIC, "get_topic", "Read a topic with its counts", R, topics.get_topic, ONE_TOPIC,
          refuses=(TopicNotFound,)),
    Route("PATCH", TOPIC, "edit_topic", "Change a topic", A, topics.edit_topic, ONE_TOPIC, m.TopicChangeIn,
          refuses=(InvalidTime, InvalidCondition, TopicNotFound, StoreFull)),
    Route("DELETE", TOPIC, "remove_topic", "Remove a topic", A, topics.remove_topic, ONE_TOPIC,
          refuses=(TopicNotFound, StoreFull)),
    Route("POST", TOPIC + "/online", "put_online", "Accept jobs and deliver again", A, topics.put_online, ONE_TOPIC,
          refuses=(TopicNotFound, StoreFull)),
    Route("POST", TOPIC + "/offline", "put_offline", "Refuse new jobs", A, topics.put_offline, ONE_TOPIC,
          refuses=(TopicNotFound, StoreFull)),
    Route("POST", TOPIC + "/test", "test_topic", "Make one sample call", A, topics.test_topic, {200: m.SampleOut},
          m.SampleIn, refuses=(TopicNotFound,), optional=True),
    Route("POST", TOPIC + "/jobs", "add_job", "Add a job to a topic", W, topics.add_job, PUSHED, m.AddIn,
          refuses=(InvalidId, InvalidTime, BodyTooLarge, QueueFull, StoreFull, TopicNotFound, TopicOffline)),

    Route("GET", SCHEDULES, "list_schedules", "List the schedules of a namespace", R, schedules.list_schedules,
          {200: m.SchedulesOut}),
    Route("GET", SCHEDULE, "get_schedule", "Read a schedule", R, schedules.get_schedule, ONE_SCHEDULE,
          refuses=(InvalidId, ScheduleNotFound)),
    Route("PUT", SCHEDULE, "put_schedule", "Create or replace a schedule", A, schedules.put_schedule, ONE_SCHEDULE,
          m.JobScheduleIn, refuses=(InvalidId, InvalidTime, BodyTooLarge, QueueFull, StoreFull, ScheduleDeclared)),
    Route("DELETE", SCHEDULE, "delete_schedule", "Remove a schedule", A, schedules.delete_schedule, ONE_SCHEDULE,
          refuses=(InvalidId, ScheduleNotFound)),
    Route("POST", SCHEDULE + "/run", "run_schedule", "Run a schedule now", A, schedules.run_schedule, ONE_SCHEDULE,
          refuses=(InvalidId, ScheduleNotFound, QueueFull, TopicOffline, StoreFull)),
    Route("POST", SCHEDULE + "/backfill", "backfill_schedule", "Push the runs of a period in the past", A,
          schedules.backfill_schedule, {200: m.BackfillOut}, m.BackfillIn,
          refuses=(InvalidId, InvalidTime, ScheduleNotFound, QueueFull, TopicOffline, StoreFull)),
    Route("POST", SCHEDULE + "/pause", "pause_schedule", "Pause a schedule", A,
          schedules.pause_schedule, ONE_SCHEDULE, refuses=(InvalidId, ScheduleNotFound, StoreFull)),
    Route("POST", SCHEDULE + "/resume", "resume_schedule", "Resume a schedule", A, schedules.resume_schedule,
          ONE_SCHEDULE, refuses=(InvalidId, ScheduleNotFound, StoreFull)),
)
# fmt: on
