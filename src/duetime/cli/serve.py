"""`duetime serve`: a server of one process or of several."""

import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from rich.text import Text

from duetime import __version__
from duetime.cli.config import ConfigOption, file_version, read_settings
from duetime.cli.options import flag, option
from duetime.cli.process_title import set_process_title
from duetime.journal.options import options_of
from duetime.model.errors import DuetimeError, InvalidSettings
from duetime.model.logs import reopen_logs, set_up_logging
from duetime.model.masking import mask
from duetime.model.names import DEFAULT_POOL
from duetime.model.settings import DEFAULT_STORE, Settings, is_loopback

if TYPE_CHECKING:
    from duetime.server.supervision.program import Started

log = logging.getLogger("duetime.serve")


OPEN_TO_OTHERS = ("open", "--host 0.0.0.0 opens the API to other machines; now only this machine reaches it")


def serve(  # noqa: PLR0913, PLR0917 - each is a flag
    store: Annotated[str | None, option("URL", f"Where jobs are kept; {DEFAULT_STORE} if not given.")] = None,
    host: Annotated[str | None, option("ADDRESS", "The address of the API, else 127.0.0.1; 0.0.0.0 opens it.")] = None,
    port: Annotated[int | None, option(None, "The port of the API, else 7777; 0 picks one.")] = None,
    admin_port: Annotated[int | None, option(None, "The port of the admin API, else 7778; 0 picks one.")] = None,
    journal: Annotated[
        str | None, option("DIR|off", "The journal's folder, else `journal` next to the SQLite file.")
    ] = None,
    workers: Annotated[int | None, option(None, "Processes that serve, else 1; 0 is one per core.")] = None,
    pid_file: Annotated[str | None, option("FILE", "Write the process id there.")] = None,
    dev: Annotated[bool | None, flag("For trying out: listens on loopback only, and needs no token.", "--dev")] = None,
    config: ConfigOption = None,
) -> None:
    """Run a server: the API on port 7777, the admin API on port 7778.

    TERM, INT (Ctrl-C) and USR2 finish open requests and then stop the server; a second signal stops it immediately. HUP
    reloads the settings. USR1 reopens log files. It listens on this machine only; --host 0.0.0.0 opens the API, not the
    admin API, to other machines. Every setting can also be given as an environment variable DUETIME_<NAME> or in
    duetime.toml; `duetime config` lists them.

    Examples:
        duetime serve --dev
        duetime serve --store sqlite:///var/lib/duetime/jobs.db
        duetime serve --store redis://127.0.0.1:6379/0 --host 0.0.0.0 --port 8080
        duetime serve --config /etc/duetime.toml --workers 2
    """
    flags: dict[str, object] = {"store": store, "host": host, "port": port, "admin_port": admin_port}
    flags |= {"journal": journal, "dev": dev, "workers": workers, "pid_file": pid_file}
    settings = read_settings(flags, config)
    set_process_title("duetime-server" if settings.workers == 1 else "duetime-master")
    if settings.store == DEFAULT_STORE:
        _make_folder(DEFAULT_STORE)
    run_program(
        "`duetime serve`",
        settings,
        announce=announce,
        read=lambda: read_settings(flags, config),
        version=lambda: file_version(config),
    )


def run_program(
    name: str,
    settings: Settings,
    *,
    announce: Callable[["Started"], None],
    read: Callable[[], Settings],
    version: Callable[[], object],
) -> None:
    """Runs a server until it is stopped. `read` reads its settings again when `version` changes."""
    try:
        from duetime.server.supervision.program import Program  # noqa: PLC0415 - the extra [server] is optional
        from duetime.server.supervision.server import run_server  # noqa: PLC0415
    except ModuleNotFoundError as missing:
        raise InvalidSettings.lacks(name, "server", missing) from None
    set_up_logging(settings)
    program = Program(
        read=read,
        file_version=version,
        announce=announce,
        set_up_logging=set_up_logging,
        reopen_logs=reopen_logs,
        worker_command=(sys.executable, "-P", "-m", "duetime.cli.serve_worker"),
    )
    try:
        run_server(settings, program)
    except DuetimeError:
        raise
    except Exception:
        log.critical("server_failed", exc_info=True)
        raise


def _make_folder(url: str) -> None:
    """The default store's folder; a store that was asked for is expected to have a place."""
    folder = Path(url.partition(":")[2]).parent
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidSettings(
            f"cannot make the folder {folder} ({error.strerror}): choose another with --store"
        ) from None


def announce(started: "Started") -> None:
    """A few lines for a person: addresses, warnings, examples to try."""
    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print(Text.assemble(("Duetime ", "bold"), (__version__, "bold"), " is ready"))
    for label, value in _facts(started):
        console.print(Text.assemble((f"  {label + ' ':<8}", "dim"), value))
    for warning in _warnings(started.settings, started.problems):
        console.print(Text.assemble(("  warning ", "yellow"), warning))


def _facts(started: "Started") -> list[tuple[str, str]]:
    pools = started.settings.pools
    journal = options_of(started.settings)
    stores = [("store" if name == DEFAULT_POOL else f"pool {name}", mask(url)) for name, url in pools.items()]
    local, admin = (
        started.addresses[name].replace("0.0.0.0", "127.0.0.1").replace("[::]", "[::1]")  # noqa: S104 - shown, not bound
        for name in ("API", "admin")
    )
    return [
        ("console", f"{admin}/console/"),
        *stores,
        *([("journal", str(journal.folder))] if journal else []),
        *started.addresses.items(),
        *([("workers", str(started.workers))] if started.workers > 1 else []),
        *zip(("try", "", ""), _trials(local, admin, is_open=started.settings.dev), strict=False),
        *([] if started.settings.dev or not is_loopback(started.settings.host) else [OPEN_TO_OTHERS]),
        ("stop", "Ctrl-C"),
    ]


def _trials(local: str, admin: str, *, is_open: bool) -> list[str]:
    """Commands that push and reserve a job; a server that is not open to everybody wants a token."""
    token = "" if is_open else ' -H "Authorization: Bearer $TOKEN"'
    return [
        *([] if is_open else [f"TOKEN=$(duetime token create --url {admin})"]),
        f'curl{token} {local}/v1/queues/default/mail/jobs -d \'{{"body": "hello", "delay": "5s"}}\'',
        f'curl{token} {local}/v1/queues/default/mail/reserve -d \'{{"wait": "10s"}}\'',
    ]


def _warnings(settings: Settings, problems: Mapping[str, str]) -> list[str]:
    warnings: list[str] = []
    if settings.dev:
        warnings.append("--dev: every namespace is open to any or no token; loopback only")
    if options_of(settings) is None:
        warnings.append(
            "no journal: what happens to jobs is not on record, and cannot be repaired if the store is lost"
        )
    warnings += [f"pool {name}: {problem}; trying again" for name, problem in problems.items()]
    return warnings
