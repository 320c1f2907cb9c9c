"""The query parameters of every route that has any; the OpenAPI document lists them from here."""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType, field

from duetime.model.job import State
from duetime.wire.messages import MAX_LIST, DurationIn, InstantIn

MAX_BUCKETS = 1000
DEFAULT_SPAN_MS = 3_600_000


class CallQuery(Struct, forbid_unknown_fields=True):
    wait: Annotated[DurationIn, Meta(description="how long to wait for the answer, at most an hour")] = "5s"


class ListQuery(Struct, forbid_unknown_fields=True):
    state: Annotated[State, Meta(description="which jobs")]
    cursor: Annotated[str, Meta(description="the cursor of the page before")] | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=MAX_LIST, description="jobs in a page")] = 100


class QueuesQuery(Struct, forbid_unknown_fields=True):
    namespace: Annotated[str, Meta(description="only this namespace; without it the token must be an admin's")] | (
        UnsetType
    ) = UNSET


class DueQuery(Struct, forbid_unknown_fields=True):
    start: Annotated[InstantIn, Meta(description="the first edge; now if left out")] | UnsetType = field(
        default=UNSET, name="from"
    )
    end: Annotated[InstantIn, Meta(description="the last edge; an hour after the first if left out")] | UnsetType = (
        field(default=UNSET, name="to")
    )
    buckets: Annotated[int, Meta(ge=1, le=MAX_BUCKETS, description="how many, 60 if left out")] | UnsetType = UNSET
    edges: (
        Annotated[
            str,
            Meta(
                description="instead of these: the edges, rising epoch milliseconds with commas between them",
                extra_json_schema={"pattern": r"^\d{1,15}(,\d{1,15})+$"},
            ),
        ]
        | UnsetType
    ) = UNSET
