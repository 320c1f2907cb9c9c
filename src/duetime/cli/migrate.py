"""`duetime migrate`: make or upgrade the tables of a store, or print the statements that would."""

from typing import Annotated

import typer

from duetime.cli.options import Target, takes_options
from duetime.cli.output import Answer
from duetime.model.errors import InvalidRequest
from duetime.stores.open import migrate_store, pending_migrations


@takes_options
def migrate(
    target: Target,
    sql: Annotated[bool, typer.Option("--sql", help="Print the statements and change nothing.")] = False,
) -> None:
    """Make or upgrade the tables of a store: PostgreSQL, MariaDB, MySQL or SQLite.

    A server does the same when it starts, if its database user may. With --sql somebody else can: give what it prints
    to psql in one transaction, or to the client of MariaDB or MySQL. Servers of the release before go on working on
    upgraded tables.
    """
    if target.address.startswith("http"):
        raise InvalidRequest("migrate takes the URL of a store, not of a server")
    answer = Answer(as_json=target.json)
    pending = pending_migrations(target.address)
    if sql:
        for one in pending:
            answer.tell({"name": one.name, "sql": one.script}, f"-- {one.name}\n{one.script}")
        return
    if pending:
        migrate_store(target.address)
    for one in pending:
        answer.tell({"name": one.name, "applied": True}, f"applied {one.name}")
    if not pending and not target.json:
        answer.console.print("the tables are up to date")
