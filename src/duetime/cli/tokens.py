"""`duetime token ...`: who may use a namespace."""

from dataclasses import dataclass, field
from typing import Annotated

import typer

from duetime.cli.options import Target, takes_options
from duetime.cli.output import Answer, note, safe
from duetime.cli.token_access import NamespaceTokens
from duetime.model.names import DEFAULT_POOL
from duetime.protocols.tokens import LABEL as LABEL_LENGTH
from duetime.protocols.tokens import READ_WRITE, Access, digest_of, split

PoolOption = Annotated[str, typer.Option(metavar="NAME", help="The pool that the namespace lives in.")]


@dataclass(frozen=True)
class CreateOptions:
    description: Annotated[str, typer.Option(metavar="TEXT", help="Who will use it.")] = "made by duetime token create"
    scope: Annotated[
        list[Access],
        typer.Option(
            help="read: take and finish jobs; write: add and recall them; admin: dead letters and whole queues. "
            "Repeatable; read and write if not given."
        ),
    ] = field(default_factory=list[Access])
    pool: PoolOption = DEFAULT_POOL


@takes_options
def create(options: CreateOptions, target: Target) -> None:
    """Make a token for the namespace. It is shown this once; only its hash is kept."""
    scopes = frozenset(options.scope) or READ_WRITE
    secret = split(NamespaceTokens(target, options.pool).create(options.description, scopes))[1]
    text = secret if options.pool == DEFAULT_POOL else f"{options.pool}:{secret}"
    document = {
        "namespace": target.space,
        "pool": options.pool,
        "token": text,
        "label": digest_of(secret)[:LABEL_LENGTH],
        "description": options.description,
        "scopes": sorted(scopes),
    }
    Answer(as_json=target.json).tell(document, text)
    if not target.json:
        note(f"for {target.space}, may {', '.join(sorted(scopes))}; keep it, it is not shown again")


@takes_options
def list_tokens(target: Target, pool: PoolOption = DEFAULT_POOL) -> None:
    """List the namespace's tokens by their labels."""
    known = NamespaceTokens(target, pool).list_tokens()
    if not known and not target.json:
        note(f"no tokens for {target.space}")
        return
    documents = [
        {
            "namespace": target.space,
            "pool": pool,
            "label": one.label,
            "description": one.description,
            "scopes": one.scopes,
        }
        for one in known
    ]
    columns = {
        "label": [one.label for one in known],
        "may": [" ".join(one.scopes) for one in known],
        "description": [safe(one.description) for one in known],
    }
    Answer(as_json=target.json).table(documents, columns)


@takes_options
def revoke(
    revoked: Annotated[str, typer.Argument(metavar="TOKEN", help="The token or its label.")],
    target: Target,
    pool: PoolOption = DEFAULT_POOL,
) -> None:
    """Refuse a token from now on; other servers follow within a second."""
    chosen, name = split(revoked) if ":" in revoked else (pool, revoked)
    where = NamespaceTokens(target, chosen)
    label = where.label_of(name)
    where.revoke(label)
    Answer(as_json=target.json).tell(
        {"namespace": target.space, "pool": chosen, "label": label, "revoked": True}, f"{label} revoked"
    )
