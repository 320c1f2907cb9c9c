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
    Meta(description="a JSON object or array, or text", extra_json_schema={"type": ["object", "array", "string"]}),
]
BodyBase64 = Annotated[str, Meta(description="in base64: bytes that are not text")]
PriorityIn = Annotated[Literal["high", "normal", "low"], Meta(description="which of the ready jobs is delivered first")]
NAME_PATTERN = r"^[A-Za-z0-9_.-]{1,255}$"
NameIn = Annotated[str, Meta(extra_json_schema={"pattern": NAME_PATTERN})]
IdIn = Annotated[
    str,
    Meta(description="printable characters", extra_json_schema={"minLength": 1, "maxLength": MAX_ID}),
]
TriesIn = Annotated[int, Meta(ge=0, le=65535, description="deliveries allowed, 0 = unlimited")]
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
    born: Annotated[int, Meta(ge=0, le=MAX_INSTANT, description="only to put a lost job back")] = 0
    attempt: Annotated[int, Meta(ge=0, le=MAX_ATTEMPT, description="only to put a lost job back")] = 0


class PushIn(JobIn, omit_defaults=True):
    """One job, and what to do if its id is taken."""

    if_exists: IfExists = IfExists.KEEP


class MarkIn(Struct, forbid_unknown_fields=True):
    """Makes a push happen once: the same name and digest again does nothing and answers as before."""

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
    """One of many: `moved`, or `error`, or neither where there was nothing to do."""

    moved: Moved | None = None
    error: ErrorOut | None = None


class PushedOut(Struct, omit_defaults=True):
    """One result per job, in order. `repeated`: done by an earlier request with the same mark."""

    results: list[ResultOut]
    now: int = 0
    repeated: bool = False


class ReserveIn(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """How many jobs, held for how long, waiting for how long."""

    limit: Annotated[int, Meta(ge=1, le=MAX_RESERVE)] = 1
    ttr: DurationIn = DEFAULT_TTR_MS // 1000
    wait: DurationIn = 0


class ReserveManyIn(ReserveIn, kw_only=True):
    """From several queues of a namespace, in this order."""

    queues: Annotated[list[NameIn], Meta(min_length=1, max_length=1000)]


class LeaseRef(Struct, forbid_unknown_fields=True):
    """The fence of a delivery; the queue is in the path."""

    id: IdIn
    born: Annotated[int, Meta(ge=0, le=MAX_INSTANT)]
    attempt: Annotated[int, Meta(ge=0, le=MAX_ATTEMPT)]


class DeliveryOut(Struct, omit_defaults=True):
    """A job in your hands until `lease_until`."""

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
    """The last of `of` finishes that carry this join pushes `then`; they are counted for `life` after the last one."""

    name: IdIn
    of: Annotated[int, Meta(ge=1, le=MAX_CAP)]
    then: Annotated[list[JobIn], Meta(min_length=1, max_length=STEP_JOBS - 1)]
    life: DurationIn


class JoinCountIn(Struct, forbid_unknown_fields=True):
    """The join of this name has seen `count` finishes, and goes on counting for `life`."""

    name: IdIn
    count: Annotated[int, Meta(ge=1, le=MAX_CAP)]
    life: DurationIn


class JoinsIn(Struct, forbid_unknown_fields=True):
    joins: Annotated[list[JoinCountIn], Meta(max_length=STEP_JOBS)]


class JoinsOut(Struct):
    """`joins` is the number of joins whose counts are now at least those given."""

    joins: int


class FinishIn(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The end of one job: the jobs that follow from it in the same queue, and its result, kept for `result_ttl`."""

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
    """Whose results; `wait` is for how long to wait until all are there."""

    ids: Annotated[list[IdIn], Meta(max_length=MAX_RESULTS)]
    wait: DurationIn = 0


class KeptResultOut(Struct, omit_defaults=True):
    """What the job of this `born` gave when it was finished."""

    id: str
    born: int
    kept_until: int
    result: BodyJson | UnsetType = UNSET
    result_b64: BodyBase64 | UnsetType = UNSET


class KeptResultsOut(Struct):
    """One entry per id, in order; null where no result is kept."""

    results: list[KeptResultOut | None]


class ReleaseIn(Struct, forbid_unknown_fields=True, omit_defaults=True):
    lease: LeaseRef
    delay: DurationIn = 0
    error: str = ""


class KillIn(Struct, forbid_unknown_fields=True, omit_defaults=True):
    lease: LeaseRef
    error: str = ""


class GiveBackIn(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Without `delay` the job waits with its old due time."""

    lease: LeaseRef
    delay: DurationIn | UnsetType = UNSET


class ExtendIn(Struct, forbid_unknown_fields=True, omit_defaults=True):
    lease: LeaseRef
    ttr: DurationIn = DEFAULT_TTR_MS // 1000


class ExtendedOut(Struct):
    lease_until: int


class IdsIn(Struct, forbid_unknown_fields=True):
    ids: IdsList


class RescheduleIn(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """By delay or due_at, not both."""

    ids: IdsList
    delay: DurationIn | UnsetType = UNSET
    due_at: InstantIn | UnsetType = UNSET


class WhenIn(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """When one job is to be due: by delay or due_at, not both."""

    delay: DurationIn | UnsetType = UNSET
    due_at: InstantIn | UnsetType = UNSET


class JobOut(Struct, omit_defaults=True):
    """All there is to know about a job."""

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
    """One entry per id, each once, in the order asked for; null where there is none.

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
    """`epoch` is the store's: another one than before means that the store was wiped or is another one."""

    namespace: str
    epoch: str
    now: int


class JournalNodeOut(Struct, omit_defaults=True):
    """`at` is when the node registered, in the store's time; `last` is the number of its last entry, if it ended.

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
    """`pool` is the name of the pool in the journal, empty from servers of earlier releases. `since` is the store's
    time from which on the pool journals, 0 if it does not.
    """

    nodes: list[JournalNodeOut]
    pool: str = ""
    since: int = 0


class HistogramOut(Struct):
    """counts[i] jobs wait with edges[i] <= due_at < edges[i + 1]."""

    edges: list[int]
    counts: list[int]


class RespawnIn(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """By ids, or the `limit` longest dead."""

    ids: IdsList | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_RESPAWN)] = 1
    ttl: DurationIn = 0
    tries: Annotated[int, Meta(ge=0, le=65535)] | None = None


class PurgeIn(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The states to empty; at most `limit` jobs if one is given."""

    states: Annotated[list[State], Meta(max_length=len(State))]
    limit: Annotated[int, Meta(ge=1, le=MAX_CAP)] | None = None


class PurgedOut(Struct):
    removed: int


class RulesIn(RulesChange, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The rules to change; what is left out stays. Zero means no cap."""

    max_jobs: Annotated[int, Meta(ge=0, le=MAX_CAP)] | UnsetType = UNSET
    max_body: Annotated[int, Meta(ge=0, le=MAX_CAP)] | UnsetType = UNSET


class CountIn(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Add `by` to a counter that workers share, 0 to read it; it is deleted after `life`, never if that is 0."""

    name: Annotated[str, Meta(min_length=1, max_length=600)]
    by: Annotated[int, Meta(ge=-MAX_CAP, le=MAX_CAP)] = 0
    life: DurationIn = 0


class CounterOut(Struct, omit_defaults=True):
    """`left_ms` is the rest of the counter's life, 0 if that does not end."""

    value: int
    left_ms: int = 0


class AnswerOut(Struct, omit_defaults=True):
    """What a worker answered to a call. `id` is the job that was called with, `answer_id` the one that came back."""

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
    Meta(description="when an answer asks for a retry: {res.code} != 200 && {res.n} < 3", max_length=MAX_LENGTH),
]
ScheduleIn = Annotated[
    str,
    Meta(
        description="waits before retries: odd-minutes, 10s, 1s,5s,1m or exponential:1s:1h; "
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
    DurationIn, Meta(description=f"how long a call may take; {DEFAULT_TIMEOUT_MS // 1000}s for a new topic")
]
MethodIn = Annotated[
    Method,
    Meta(
        description="the body's fields in the query (GET) or as a form (POST), or the body as it is in a POST (JSON); "
        f"{NEW_METHOD} for a new topic"
    ),
]
PhpFieldsIn = Annotated[
    bool, Meta(description="whether notify_time, dq_set_time and exp_notify_nums are added, as php-delayqueue does")
]
SuccessIn = Annotated[
    Success,
    Meta(
        description="which answers are a success: a 2xx status, a body that is not empty, or both (2xx); "
        f"{NEW_SUCCESS} for a new topic"
    ),
]
AlertIn = Annotated[list[Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]], Meta(max_length=MAX_ALERTS)]
InFlightIn = Annotated[
    int,
    Meta(
        ge=1,
        le=MAX_IN_FLIGHT,
        description=f"calls at a time, for each server process; {DEFAULT_IN_FLIGHT} for a new topic",
    ),
]
RateIn = Annotated[int, Meta(ge=0, le=MAX_RATE, description="calls a second, for each server process; 0 = no limit")]
SecretIn = Annotated[
    str, Meta(description="signs callbacks: whsec_ and base64; 'new' draws one; empty ends signing", max_length=200)
]


class TopicFields(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What may be said about a topic when it is added and later."""

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
    """What to change; what is left out stays."""

    callback: UrlIn | UnsetType = UNSET


class TopicIn(TopicFields, kw_only=True):
    """A topic to add. `topic` is its key and its queue's name, `name` what people call it."""

    topic: NameIn
    callback: UrlIn


class TopicCountsOut(Struct):
    """What the store counted in the topic's queue, in all or on one day.

    `written` are jobs that were added, `notified` those that were finished, `deleted` those that were removed by id
    before; `failed` are attempts that failed.
    """

    written: int = 0
    notified: int = 0
    deleted: int = 0
    failed: int = 0


class TopicOut(Struct, omit_defaults=True, kw_only=True):
    """A topic. `secret` is shown once, in the answer to the request that set it.

    Days are UTC days, written 20261115. Without `totals` the topic's pool does not answer.
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
    """A job for a topic; its delay, priority and tries are the topic's. An id that is taken is replaced."""

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
    """The body of the job that the sample call is about."""

    body: BodyJson | UnsetType = UNSET


class SampleRequestOut(Struct):
    method: str
    url: str
    headers: dict[str, str]
    body: str


class SampleAnswerOut(Struct, omit_defaults=True):
    """`status` 0 and `error` where no answer came."""

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

MissedIn = Annotated[Missed, Meta(description="which runs happen later if they were due while nothing ran schedules")]
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
    """A span of the past: from `since` on and before `until`, which is now if it is not given."""

    since: InstantIn
    until: InstantIn | UnsetType = UNSET


class BackfillOut(Struct):
    """How many runs of the schedule the span has, and how many of them were pushed now."""

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
