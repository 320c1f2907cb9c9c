"""The types of every message.

`wire/convert.py` says how a body is sent in `body` or `body_b64`. Times go out as epoch milliseconds and come
in as people write them (`duetime.model.clock`).
"""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from duetime.model.clock import MAX_DURATION, MAX_INSTANT, MAX_TIME_TEXT
from duetime.model.condition import MAX_LENGTH
from duetime.model.job import DEFAULT_TRIES, DEFAULT_TTR_MS, MAX_RESULT, STEP_BYTES, STEP_JOBS, IfExists, Moved, State
from duetime.model.names import MAX_ID
from duetime.model.schedules import MAX_CRON, Missed, Overlap
from duetime.model.topic import (
    DEFAULT_CAP,
    DEFAULT_IN_FLIGHT,
    DEFAULT_SCHEDULE,
    DEFAULT_TIMEOUT_MS,
    MAX_ALERTS,
    MAX_IN_FLIGHT,
    MAX_RATE,
    MAX_TEXT,
    MAX_URL,
    NEW_METHOD,
    NEW_SUCCESS,
    Method,
    Status,
    Success,
)
from duetime.model.topic import (
    MAX_CAP as MOST_RETRIES,
)
from duetime.stores.base import QueueRules, RulesChange

MAX_PUSH = 1000
MAX_RESERVE = 500
MAX_LIST = 500
MAX_BUCKETS = 1000
MAX_RESPAWN = 10_000
MAX_RESULTS = STEP_BYTES // MAX_RESULT
"""Results in one answer."""
MAX_WAIT_MS = 3_600_000
"""The longest that one request waits; a client that wants to wait longer asks again."""
MAX_REQUEST = 8 * 1_048_576
"""The largest request body in bytes."""
MAX_ATTEMPT = 2**32 - 1
MAX_CAP = 2**53 - 1
"""The largest whole number that every JSON reader keeps exactly."""

# `extra_json_schema` is for the OpenAPI document only: what it says is checked behind the decoder, by the model's own
# rules, so that the answer has the right error code and a batch can refuse one job instead of all.
DurationIn = Annotated[
    int | float | str,
    Meta(
        description="seconds, or text with units: 90, '10s', '5m', '1h30m'",
        extra_json_schema={
            "minimum": 0,
            "maximum": MAX_DURATION // 1000,
            "maxLength": MAX_TIME_TEXT,
            "pattern": r"^\s*((\d+(\.\d+)?([mM][sS]|[sSmMhHdDwW]))+|\d+(\.\d+)?)\s*$",
        },
    ),
]
InstantIn = Annotated[
    int | str,
    Meta(
        description="epoch milliseconds (seconds are refused), or RFC 3339 with a time zone",
        extra_json_schema={"minimum": 0, "maximum": MAX_INSTANT, "maxLength": MAX_TIME_TEXT, "format": "date-time"},
    ),
]
BodyJson = Annotated[
    Raw,
    Meta(
        description="a JSON object or array, or text",
        # Not a list of types: generators of clients do not know those, and make it a string.
        extra_json_schema={"not": {"anyOf": [{"type": kind} for kind in ("number", "boolean", "null")]}},
    ),
]
BodyBase64 = Annotated[str, Meta(description="bytes that are not text, in base64")]
PriorityIn = Annotated[Literal["high", "normal", "low"], Meta(description="the order among ready jobs")]
NAME_PATTERN = r"^[A-Za-z0-9_.-]{1,255}$"
NameIn = Annotated[str, Meta(extra_json_schema={"pattern": NAME_PATTERN})]
IdIn = Annotated[
    str,
    Meta(description="printable characters", extra_json_schema={"minLength": 1, "maxLength": MAX_ID}),
]
TriesIn = Annotated[int, Meta(ge=0, le=65535, description="number of deliveries allowed; 0: unlimited")]
IdsList = Annotated[list[IdIn], Meta(max_length=MAX_PUSH)]


class JobIn(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A job to push. Due after `delay` or at `due_at`, immediately if neither is given."""

    body: BodyJson | UnsetType = UNSET
    body_b64: BodyBase64 | UnsetType = UNSET
    id: IdIn | UnsetType = UNSET
    delay: DurationIn | UnsetType = UNSET
    due_at: InstantIn | UnsetType = UNSET
    ttl: DurationIn = 0
    tries: TriesIn = DEFAULT_TRIES
    priority: PriorityIn = "normal"
    attributes: dict[str, str] = {}
    born: Annotated[int, Meta(ge=0, le=MAX_INSTANT, description="only for restoring a lost job")] = 0
    attempt: Annotated[int, Meta(ge=0, le=MAX_ATTEMPT, description="only for restoring a lost job")] = 0


class PushIn(JobIn, omit_defaults=True):
    """One job, and what to do if its id is taken."""

    if_exists: IfExists = IfExists.KEEP


class MarkIn(Struct, forbid_unknown_fields=True):
    """Makes a push happen once: repeating it with the same name and digest returns the same answer."""

    name: Annotated[str, Meta(min_length=1, max_length=255)]
    digest: Annotated[str, Meta(description="hex", max_length=128)]
    life: DurationIn


class BatchIn(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Jobs for one queue. `atomic`: all or none; otherwise each has its own result."""

    jobs: Annotated[list[JobIn], Meta(min_length=1, max_length=MAX_PUSH)]
    if_exists: IfExists = IfExists.KEEP
    atomic: bool = True
    mark: MarkIn | None = None


class ErrorOut(Struct, omit_defaults=True):
    """problem+json (RFC 9457) with our stable code."""

    code: str
    title: str
    status: int
    type: str = "about:blank"
    detail: str = ""
    fields: dict[str, msgspec.Raw] = {}


class ResultOut(Struct, omit_defaults=True):
    """One result: `moved`, or `error`, or neither if there was nothing to do."""

    moved: Moved | None = None
    error: ErrorOut | None = None


class PushedOut(Struct, omit_defaults=True):
    """One result per job, in order. `repeated`: done by an earlier request with the same mark."""

    results: list[ResultOut]
    now: int = 0
    repeated: bool = False


class ReserveIn(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Leases up to `limit` jobs for `ttr`. Waits up to `wait` for the first one."""

    limit: Annotated[int, Meta(ge=1, le=MAX_RESERVE)] = 1
    ttr: DurationIn = DEFAULT_TTR_MS // 1000
    wait: DurationIn = 0


class ReserveManyIn(ReserveIn, kw_only=True):
    """Leases jobs from several queues of a namespace, in this order."""

    queues: Annotated[list[NameIn], Meta(min_length=1, max_length=1000)]


class LeaseRef(Struct, forbid_unknown_fields=True):
    """A lease. Its queue is in the path."""

    id: IdIn
    born: Annotated[int, Meta(ge=0, le=MAX_INSTANT)]
    attempt: Annotated[int, Meta(ge=0, le=MAX_ATTEMPT)]


class DeliveryOut(Struct, omit_defaults=True):
    """A job that is leased to you until `lease_until`."""

    queue: str
    lease: LeaseRef
    due_at: int
    lease_until: int
    priority: PriorityIn
    tries: int
    used: int
    body: BodyJson | UnsetType = UNSET
    body_b64: BodyBase64 | UnsetType = UNSET
    expires_at: int = 0
    attributes: dict[str, str] = {}
    error: str = ""


class DeliveriesOut(Struct):
    deliveries: list[DeliveryOut]


class AckIn(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One `lease`, or several `leases`."""

    lease: LeaseRef | UnsetType = UNSET
    leases: Annotated[list[LeaseRef], Meta(max_length=MAX_PUSH)] | UnsetType = UNSET


class ResultsOut(Struct):
    """One result per item, in order."""

    results: list[ResultOut]


class JoinIn(Struct, forbid_unknown_fields=True):
    """The last of `of` finishes with this join pushes `then`. The count is kept for `life` after each finish."""

    name: IdIn
    of: Annotated[int, Meta(ge=1, le=MAX_CAP)]
    then: Annotated[list[JobIn], Meta(min_length=1, max_length=STEP_JOBS - 1)]
    life: DurationIn


class JoinCountIn(Struct, forbid_unknown_fields=True):
    """Raises the count of the join `name` to `count`, and keeps the count for `life`."""

    name: IdIn
    count: Annotated[int, Meta(ge=1, le=MAX_CAP)]
    life: DurationIn


class JoinsIn(Struct, forbid_unknown_fields=True):
    joins: Annotated[list[JoinCountIn], Meta(max_length=STEP_JOBS)]


class JoinsOut(Struct):
    """`joins` is the number of joins whose counts are now at least the given ones."""

    joins: int


class FinishIn(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Finishes one job, pushes its follow-up jobs to the same queue, and keeps its result for `result_ttl`."""

    lease: LeaseRef
    then: Annotated[list[JobIn], Meta(max_length=STEP_JOBS - 1)] = []
    result: BodyJson | UnsetType = UNSET
    result_b64: BodyBase64 | UnsetType = UNSET
    result_ttl: DurationIn = 0
    join: JoinIn | None = None


class FinishesIn(Struct, forbid_unknown_fields=True):
    finishes: Annotated[list[FinishIn], Meta(max_length=MAX_PUSH)]


class FinishedOut(ResultOut, omit_defaults=True):
    """`moved` is the end of the job, `then` has one event per job that follows, `now` is the store's time, `joined` is
    how many finishes the join has seen.
    """

    then: list[Moved] = []
    now: int = 0
    joined: int = 0


class FinishesOut(Struct):
    """One result per finish, in order."""

    results: list[FinishedOut]


class ResultsIn(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The ids of the jobs. Waits up to `wait` until all results are there."""

    ids: Annotated[list[IdIn], Meta(max_length=MAX_RESULTS)]
    wait: DurationIn = 0


class KeptResultOut(Struct, omit_defaults=True):
    """The result of the job with this `born`."""

    id: str
    born: int
    kept_until: int
    result: BodyJson | UnsetType = UNSET
    result_b64: BodyBase64 | UnsetType = UNSET


class KeptResultsOut(Struct):
    """One entry per id, in order; null if no result is kept."""

    results: list[KeptResultOut | None]


class ReleaseIn(Struct, forbid_unknown_fields=True, omit_defaults=True):
    lease: LeaseRef
    delay: DurationIn = 0
    error: str = ""


class KillIn(Struct, forbid_unknown_fields=True, omit_defaults=True):
    lease: LeaseRef
    error: str = ""


class GiveBackIn(AckIn, forbid_unknown_fields=True, omit_defaults=True):
    """One `lease`, or several `leases`. Without `delay` the jobs keep their old due times."""

    delay: DurationIn | UnsetType = UNSET


class ExtendIn(Struct, forbid_unknown_fields=True, omit_defaults=True):
    lease: LeaseRef
    ttr: DurationIn = DEFAULT_TTR_MS // 1000


class ExtendedOut(Struct):
    lease_until: int


class IdsIn(Struct, forbid_unknown_fields=True):
    ids: IdsList


class RescheduleIn(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The new due time, as `delay` or `due_at`, not both."""

    ids: IdsList
    delay: DurationIn | UnsetType = UNSET
    due_at: InstantIn | UnsetType = UNSET


class WhenIn(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The new due time of one job, as `delay` or `due_at`, not both."""

    delay: DurationIn | UnsetType = UNSET
    due_at: InstantIn | UnsetType = UNSET


class JobOut(Struct, omit_defaults=True):
    """A job with all its fields."""

    namespace: str
    queue: str
    id: str
    born: int
    state: State
    due_at: int
    priority: PriorityIn
    tries: int
    body: BodyJson | UnsetType = UNSET
    body_b64: BodyBase64 | UnsetType = UNSET
    used: int = 0
    attempt: int = 0
    expires_at: int = 0
    lease_until: int = 0
    dead_at: int = 0
    reason: str = ""
    error: str = ""
    attributes: dict[str, str] = {}


class JobsOut(Struct, omit_defaults=True):
    """One entry per id, each once, in the order of the request; null if there is no such job.

    `left_out` are ids that were not processed, because the answer ends at 500 jobs or 4 MiB: ask for them again.
    """

    jobs: list[JobOut | None]
    left_out: list[str] = []


class PageOut(Struct, omit_defaults=True):
    jobs: list[JobOut]
    cursor: str | None = None


# Not `model.job.Counts`, whose fields all have a default: the wire shows every count, also those that are zero.
class CountsOut(Struct, omit_defaults=True):
    delayed: int
    ready: int
    leased: int
    dead: int
    expired: int
    now: int
    damaged: int = 0
    cold: int = 0


class QueueOut(Struct, omit_defaults=True):
    namespace: str
    queue: str
    counts: CountsOut
    rules: QueueRules
    next_at: int = 0


class QueuesOut(Struct):
    queues: list[QueueOut]


class NamespacesOut(Struct):
    namespaces: list[str]


class NamespaceOut(Struct):
    """`epoch` identifies the contents of the store. It changes if the store is wiped or replaced."""

    namespace: str
    epoch: str
    now: int


class JournalNodeOut(Struct, omit_defaults=True):
    """`at` is when the node registered, by the store's clock; `last` is the number of its last entry, if it ended.

    A program without a journal has `journal` false; `seen_at` is when it last renewed its registration.
    """

    node: str
    at: int
    last: int | None = None
    abandoned: bool = False
    host: str = ""
    pid: int = 0
    journal: bool = True
    seen_at: int = 0


class JournalNodesOut(Struct):
    """`pool` is the name of the pool in the journal. `since` is the time by the store's clock from which the pool is
    journaled, 0 if it is not.
    """

    nodes: list[JournalNodeOut]
    pool: str
    since: int


class HistogramOut(Struct):
    """counts[i] is the number of waiting jobs with edges[i] <= due_at < edges[i + 1]."""

    edges: list[int]
    counts: list[int]


class RespawnIn(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Selects dead letters by ids, or the `limit` that have been dead longest."""

    ids: IdsList | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_RESPAWN)] = 1
    ttl: DurationIn = 0
    tries: Annotated[int, Meta(ge=0, le=65535)] | None = None


class PurgeIn(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Removes jobs in these states, at most `limit` if it is given."""

    states: Annotated[list[State], Meta(max_length=len(State))]
    limit: Annotated[int, Meta(ge=1, le=MAX_CAP)] | None = None


class PurgedOut(Struct):
    removed: int


class RulesIn(RulesChange, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The rules to change. Omitted fields keep their values. Zero means no limit."""

    max_jobs: Annotated[int, Meta(ge=0, le=MAX_CAP)] | UnsetType = UNSET
    max_body: Annotated[int, Meta(ge=0, le=MAX_CAP)] | UnsetType = UNSET


class CountIn(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Adds `by` to a counter that workers share; 0 reads it. It is deleted after `life`; 0: never."""

    name: Annotated[str, Meta(min_length=1, max_length=600)]
    by: Annotated[int, Meta(ge=-MAX_CAP, le=MAX_CAP)] = 0
    life: DurationIn = 0


class CounterOut(Struct, omit_defaults=True):
    """`left_ms` is the rest of the counter's life; 0 if it is never deleted."""

    value: int
    left_ms: int = 0


class AnswerOut(Struct, omit_defaults=True):
    """The answer to a call. `id` is the job that was pushed, `answer_id` the job with the answer."""

    id: str
    answer_id: str
    body: BodyJson | UnsetType = UNSET
    body_b64: BodyBase64 | UnsetType = UNSET
    attributes: dict[str, str] = {}


# --- topics

Text = Annotated[str, Meta(max_length=MAX_TEXT)]
UrlIn = Annotated[str, Meta(description="an http or https URL", max_length=MAX_URL)]
ConditionIn = Annotated[
    str,
    Meta(description="the condition for a retry: {res.code} != 200 && {res.n} < 3", max_length=MAX_LENGTH),
]
ScheduleIn = Annotated[
    str,
    Meta(
        description="delays before retries: odd-minutes, 10s, 1s,5s,1m or exponential:1s:1h; "
        f"{DEFAULT_SCHEDULE} for a new topic",
        max_length=1000,
    ),
]
CapIn = Annotated[
    int,
    Meta(
        ge=0,
        le=MOST_RETRIES,
        description="retries after the first attempt, so that a job is tried at most 1 + cap times; "
        f"{DEFAULT_CAP} for a new topic",
    ),
]
TimeoutIn = Annotated[
    DurationIn, Meta(description=f"the timeout of a call; {DEFAULT_TIMEOUT_MS // 1000}s for a new topic")
]
MethodIn = Annotated[
    Method,
    Meta(
        description="GET: the body's fields in the query; POST: as a form; JSON: the unchanged body in a POST; "
        f"{NEW_METHOD} for a new topic"
    ),
]
PhpFieldsIn = Annotated[
    bool, Meta(description="adds php-delayqueue's fields: notify_time, dq_set_time and exp_notify_nums")
]
SuccessIn = Annotated[
    Success,
    Meta(
        description="which answers are a success. status: a 2xx status; body: a body that is not empty; 2xx: both; "
        f"{NEW_SUCCESS} for a new topic"
    ),
]
AlertIn = Annotated[list[Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]], Meta(max_length=MAX_ALERTS)]
InFlightIn = Annotated[
    int,
    Meta(
        ge=1,
        le=MAX_IN_FLIGHT,
        description=f"concurrent calls of each server process; {DEFAULT_IN_FLIGHT} for a new topic",
    ),
]
RateIn = Annotated[int, Meta(ge=0, le=MAX_RATE, description="calls per second of each server process; 0: no limit")]
SecretIn = Annotated[
    str, Meta(description="signs callbacks: whsec_ and base64; 'new' generates one; empty ends signing", max_length=200)
]


class TopicFields(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The fields of a topic that can be set and changed."""

    name: Text | UnsetType = UNSET
    delay: DurationIn | UnsetType = UNSET
    method: MethodIn | UnsetType = UNSET
    timeout: TimeoutIn | UnsetType = UNSET
    retry_if: ConditionIn | UnsetType = UNSET
    schedule: ScheduleIn | UnsetType = UNSET
    cap: CapIn | UnsetType = UNSET
    lift_cap: bool | UnsetType = UNSET
    success: SuccessIn | UnsetType = UNSET
    php_fields: PhpFieldsIn | UnsetType = UNSET
    priority: PriorityIn | UnsetType = UNSET
    alert: AlertIn | UnsetType = UNSET
    creator: Text | UnsetType = UNSET
    verify_tls: bool | UnsetType = UNSET
    in_flight: InFlightIn | UnsetType = UNSET
    rate: RateIn | UnsetType = UNSET
    secret: SecretIn | UnsetType = UNSET


class TopicChangeIn(TopicFields, kw_only=True):
    """The fields to change. Omitted fields keep their values."""

    callback: UrlIn | UnsetType = UNSET


class TopicIn(TopicFields, kw_only=True):
    """A topic to add. `topic` is its key and its queue's name, `name` what people call it."""

    topic: NameIn
    callback: UrlIn


class TopicCountsOut(Struct):
    """The counts of the topic's queue, in total or for one day.

    `written` counts jobs that were added, `notified` jobs that were finished, `deleted` jobs that were removed by id
    before they were finished, and `failed` attempts that failed.
    """

    written: int = 0
    notified: int = 0
    deleted: int = 0
    failed: int = 0


class TopicOut(Struct, omit_defaults=True, kw_only=True):
    """A topic. `secret` is shown once, in the answer to the request that set it.

    Days are UTC days, written 20261115. `totals` is missing while the topic's pool does not answer.
    """

    namespace: str
    topic: str
    id: int
    callback: str
    method: Method
    delay_ms: int
    timeout_ms: int
    schedule: str
    cap: int
    success: Success
    priority: PriorityIn
    status: Status
    in_flight: int
    verify_tls: bool
    signed: bool
    totals: TopicCountsOut | None = None
    days: dict[str, TopicCountsOut] = {}
    name: str = ""
    retry_if: str = ""
    lift_cap: bool = False
    php_fields: bool = False
    alert: list[str] = []
    creator: str = ""
    halted: str = ""
    rate: int = 0
    secret: str = ""


class TopicsOut(Struct):
    topics: list[TopicOut]


class CountersOut(Struct):
    """php-delayqueue's counters under its own names, such as `1:total_write` and `1:tw:20261115` of topic 1; and the
    sums over all topics, also removed ones that still have jobs. Days are UTC days.
    """

    counters: dict[str, int]
    totals: TopicCountsOut
    days: dict[str, TopicCountsOut] = {}


class AddIn(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A job for a topic, with the topic's delay, priority and tries. Replaces a job with the same id."""

    body: BodyJson | UnsetType = UNSET
    id: IdIn | UnsetType = UNSET
    due_at: InstantIn | UnsetType = UNSET
    fix_time: (
        Annotated[
            str,
            Meta(
                min_length=1,
                description="when it is due, in the server's time zone: 2026-11-15 09:00:00",
                extra_json_schema={"pattern": r"^\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}$"},
            ),
        ]
        | UnsetType
    ) = UNSET


class SampleIn(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The body of the sample call."""

    body: BodyJson | UnsetType = UNSET


class SampleRequestOut(Struct):
    method: str
    url: str
    headers: dict[str, str]
    body: str


class SampleAnswerOut(Struct, omit_defaults=True):
    """`status` is 0 and `error` is set if there was no answer."""

    status: int
    ms: int
    headers: dict[str, str] = {}
    body: str = ""
    error: str = ""


class SampleOut(Struct):
    """One sample call. `verdict`: done, or why it would be tried again: error (no answer), empty, condition, status."""

    request: SampleRequestOut
    answer: SampleAnswerOut
    verdict: str
    why: str


# --- schedules

MissedIn = Annotated[Missed, Meta(description="which missed runs happen later")]
OverlapIn = Annotated[Overlap, Meta(description="`skip`: no run while the job of the last run is unfinished")]
CronIn = Annotated[str, Meta(description="five fields, such as `0 9 * * mon-fri`", max_length=MAX_CRON)]
ZoneIn = Annotated[str, Meta(description="the time zone of `cron`, such as Asia/Shanghai", max_length=MAX_TEXT)]
TaskIn = Annotated[str, Meta(description="the task that workers run", min_length=1, max_length=MAX_TEXT)]


class JobScheduleIn(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A schedule: `every` or `cron`, and either a `task` with its `arguments`, or a body."""

    queue: NameIn
    every: DurationIn | UnsetType = UNSET
    cron: CronIn | UnsetType = UNSET
    tz: ZoneIn = "UTC"
    task: TaskIn | UnsetType = UNSET
    arguments: dict[str, Raw] | UnsetType = UNSET
    body: BodyJson | UnsetType = UNSET
    body_b64: BodyBase64 | UnsetType = UNSET
    ttl: DurationIn = 0
    tries: TriesIn = DEFAULT_TRIES
    priority: PriorityIn = "normal"
    attributes: dict[str, str] = {}
    missed: MissedIn = "last"
    overlap: OverlapIn = "allow"


class BackfillIn(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A period in the past, from `since` to just before `until` (default: now)."""

    since: InstantIn
    until: InstantIn | UnsetType = UNSET


class BackfillOut(Struct):
    """The number of runs in the period, and how many of them were pushed."""

    runs: int
    pushed: int


class ScheduleOut(Struct, kw_only=True):
    """A schedule. `schedule` is `every 1h` or `cron 0 9 * * mon-fri Asia/Shanghai`. `next_at` is 0 while it is paused,
    `last_at` 0 before the first run. The job of the last run has the id `last_id`, and is `last_state`: delayed, ready,
    leased, dead, or empty if it is finished or there was none. A `declared` schedule is part of a program with tasks.
    """

    namespace: str
    name: str
    schedule: str
    queue: str
    task: str
    missed: Missed
    overlap: Overlap
    paused: bool
    declared: bool
    next_at: int
    last_at: int
    last_id: str
    last_state: str
    arguments: dict[str, Raw] = {}
    body: BodyJson | UnsetType = UNSET
    body_b64: BodyBase64 | UnsetType = UNSET
    ttl_ms: int = 0
    tries: int = DEFAULT_TRIES
    priority: PriorityIn = "normal"
    attributes: dict[str, str] = {}


class SchedulesOut(Struct):
    schedules: list[ScheduleOut]
