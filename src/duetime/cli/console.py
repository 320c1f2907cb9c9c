"""`duetime console`: the console alone, on a store that exists, for as long as the command runs."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from duetime.cli.config import ConfigOption, read_settings
from duetime.cli.options import AnswerForm, option
from duetime.cli.process_title import set_process_title
from duetime.cli.serve import run_program
from duetime.client.store_link import on_store
from duetime.client.transport import check_is_store
from duetime.journal.options import OFF, embedded_options, options_of
from duetime.journal.registration import RegisteredNode, find_journaling, registered
from duetime.model.errors import InvalidSettings
from duetime.model.masking import mask
from duetime.model.names import DEFAULT_POOL
from duetime.model.settings import Settings
from duetime.stores.base import Store
from duetime.stores.open import pending_migrations

if TYPE_CHECKING:
    from duetime.server.supervision.program import Started

PORT = 7779
"""Not a port of `duetime serve`, which may run on this machine, too."""
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class ConsoleTarget(AnswerForm):
    url: Annotated[
        str | None,
        option(
            "URL",
            "The store: sqlite:///..., redis://..., postgresql://... DUETIME_URL, else the store of the settings.",
        ),
    ] = None


def console(
    target: ConsoleTarget,
    port: Annotated[int, option(None, "The port of the console; 0 picks one.", "--port", "--admin-port")] = PORT,
    config: ConfigOption = None,
) -> None:
    """Open the web console of an existing store on this machine, without a server.

    It serves pages on 127.0.0.1 only, and prints their URL. It serves no API, calls no callbacks, runs no schedules and
    sends no alerts. Actions on its pages change the store; they are journaled if the pool journals. Everybody on this
    machine may use it, unless the settings file has [accounts]. Without --url it opens the store of the settings.

    Examples:
        duetime console --url redis://localhost:6379/0
        duetime console --url sqlite:///var/lib/duetime/jobs.db --port 8080
        duetime console --url postgresql://db/app --json
    """
    settings = _settings(target.url, port, config)
    set_process_title("duetime-console")

    def announce(started: "Started") -> None:
        url = f"{started.addresses['admin']}/console/"
        options = options_of(settings)
        journal = str(options.folder) if options else None
        target.answer.show(
            {"url": url, "store": mask(settings.store), "journal": journal},
            f"The console of {mask(settings.store)} is at {url}\nStop it with Ctrl-C",
        )

    run_program("`duetime console`", settings, announce=announce, read=lambda: settings, version=lambda: None)


def _settings(url: str | None, port: int, config: str | None) -> Settings:
    """The settings of a server that serves only the console. Raises InvalidSettings, and StoreUnavailable if the store
    does not answer.
    """
    url = url or os.environ.get("DUETIME_URL")
    settings = read_settings({"store": url, "admin_port": port}, config)
    _check_exists(settings.store)
    return replace(
        settings,
        # A store that was named is all that is opened: other pools of the file may belong to another deployment.
        pools={DEFAULT_POOL: settings.store} if url else settings.pools,
        registry_store="" if url else settings.registry_store,
        journal=_journal_of(settings),
        console_only=True,
        dev=not settings.accounts,
        host=LOOPBACK,
        admin_host=LOOPBACK,
        admin_unix_socket="",
        workers=1,
        pid_file="",
        log_file="",
        otel_endpoint="",
    )


def _check_exists(url: str) -> None:
    """Opening a store creates its file and tables, which a console must not do."""
    check_is_store(
        url,
        f"`duetime console` must have the URL of a store, got {mask(url)}: a server has its own console at its admin "
        "address, such as http://127.0.0.1:7778/console/",
    )
    if url.startswith("memory:"):
        raise InvalidSettings("`duetime console` cannot show memory:, which is a store inside one process")
    if pending_migrations(url):
        raise InvalidSettings(
            f"{mask(url)} has no tables of this version of Duetime: check the URL, or create or upgrade them with "
            "`duetime migrate --url URL`"
        )


def _journal_of(settings: Settings) -> str:
    """The journal's folder if the pool journals, as for every program that opens the store; else `off`."""
    is_journaling, nodes = on_store(settings.store, _journaling)
    if not is_journaling or settings.journal.lower() == OFF:
        return OFF
    options = embedded_options(settings.store, settings.journal or None, nodes=nodes)
    return str(options.folder) if options else OFF


async def _journaling(store: Store) -> tuple[bool, Mapping[str, RegisteredNode]]:
    return await find_journaling(store) is not None, await registered(store)
