"""The messages about topics."""

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType, structs

from duetime.model.clock import duration_ms
from duetime.model.condition import MAX_LENGTH
from duetime.model.job import Priority
from duetime.model.topic import (
    DEFAULT_CAP,
    DEFAULT_IN_FLIGHT,
    DEFAULT_SCHEDULE,
    DEFAULT_TIMEOUT_MS,
    MAX_ALERTS,
    MAX_CAP,
    MAX_IN_FLIGHT,
    MAX_RATE,
    MAX_TEXT,
    MAX_URL,
    NEW_METHOD,
    NEW_PHP_FIELDS,
    NEW_SUCCESS,
    Method,
    Status,
    Success,
    Topic,
)
from duetime.wire.messages import BodyJson, DurationIn, IdIn, InstantIn, NameIn, PriorityIn

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
        le=MAX_CAP,
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
    """One sample call. `verdict`: done, or why it would be tried again: empty, condition, status."""

    request: SampleRequestOut
    answer: SampleAnswerOut
    verdict: str
    why: str


# --- between messages and nouns


def topic_of(message: TopicIn) -> Topic:
    """The new topic of a message; only its times are checked. Raises InvalidTime."""
    new = {"method": NEW_METHOD, "success": NEW_SUCCESS, "php_fields": NEW_PHP_FIELDS}
    fields: dict[str, Any] = new | change_of(message)
    return Topic(key=message.topic, **fields)


def change_of(message: TopicFields) -> dict[str, Any]:
    """The new values by the names of the topic's fields. Raises InvalidTime."""
    given = {name: value for name, value in structs.asdict(message).items() if value is not UNSET and name != "topic"}
    for name in ("delay", "timeout"):
        if name in given:
            given[f"{name}_ms"] = duration_ms(given.pop(name))
    if "priority" in given:
        given["priority"] = Priority[given["priority"].upper()]
    if "alert" in given:
        given["alert"] = tuple(given["alert"])
    return given
