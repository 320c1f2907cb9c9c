"""`duetime limit ...`: how many requests a token may make."""

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from duetime.cli.options import Target, takes_options
from duetime.cli.output import Answer, note, span
from duetime.cli.token_access import NamespaceTokens
from duetime.cli.tokens import PoolOption
from duetime.model.clock import duration_ms
from duetime.model.errors import InvalidRequest
from duetime.model.names import DEFAULT_POOL
from duetime.protocols.rate_limits import Limit

TokenArgument = Annotated[str, typer.Argument(metavar="TOKEN", help="The token or its label.")]


@takes_options
def list_limits(target: Target, pool: PoolOption = DEFAULT_POOL) -> None:
    """List the limits of the namespace's tokens."""
    found = sorted(NamespaceTokens(target, pool).list_limits().items())
    if not found and not target.json:
        note(f"no limits in {target.space}")
        return
    columns = {
        "label": [label for label, _ in found],
        "reads ": [_shown(limit.read) for _, limit in found],
        "writes ": [_shown(limit.write) for _, limit in found],
        "every": [span(limit.interval * 1000) for _, limit in found],
    }
    Answer(as_json=target.json).table([_document(target, pool, *one) for one in found], columns)


@dataclass(frozen=True)
class LimitOptions:
    read: Annotated[int, typer.Option(min=0, metavar="N", help="Requests that take or read jobs; 0: no limit.")] = 0
    write: Annotated[int, typer.Option(min=0, metavar="N", help="Requests that add or change jobs; 0: no limit.")] = 0
    every: Annotated[
        str, typer.Option(metavar="DURATION", help="The period that the limits are for, in whole seconds.")
    ] = "1m"
    pool: PoolOption = DEFAULT_POOL


@takes_options
def set_limit(limited: TokenArgument, options: LimitOptions, target: Target) -> None:
    """Limit the requests of a token; requests beyond the limit get 429 with Retry-After."""
    interval_ms = duration_ms(options.every)
    if not (options.read or options.write):
        raise InvalidRequest("say how many: --read N, --write N or both")
    if interval_ms < 1000 or interval_ms % 1000:
        raise InvalidRequest(f"--every is whole seconds, at least one: {options.every!r}")
    where = NamespaceTokens(target, options.pool)
    limit = Limit(interval_ms // 1000, options.read, options.write)
    label = where.label_of(limited)
    where.set_limit(label, limit)
    text = f"{label}: {_shown(limit.read)} reads, {_shown(limit.write)} writes every {span(interval_ms)}"
    Answer(as_json=target.json).tell(_document(target, options.pool, label, limit), text)


@takes_options
def remove(limited: TokenArgument, target: Target, pool: PoolOption = DEFAULT_POOL) -> None:
    """Take a token's limit away."""
    where = NamespaceTokens(target, pool)
    label = where.label_of(limited)
    where.set_limit(label, None)
    document = {"namespace": target.space, "pool": pool, "label": label, "removed": True}
    Answer(as_json=target.json).tell(document, f"{label}: no limit")


def _shown(number: int) -> str:
    return f"{number:,}" if number > 0 else "any"


def _document(target: Target, pool: str, label: str, limit: Limit) -> dict[str, Any]:
    shown = {"read": limit.read, "write": limit.write, "every_s": limit.interval}
    return {"namespace": target.space, "pool": pool, "label": label, **shown}
