"""`duetime mcp`: a server of the Model Context Protocol, for agents."""

import asyncio
from dataclasses import asdict
from typing import Annotated, Any

from duetime.cli.config import ConfigOption
from duetime.cli.doctor_store import examine
from duetime.cli.journal import JournalOption, journal_folder
from duetime.cli.options import Target, check_exists, flag, option
from duetime.journal.events import Entry, as_fields
from duetime.journal.reader import lives_of, read_job
from duetime.model.errors import InvalidSettings
from duetime.model.settings import is_loopback

MAX_PORT = 65_535
EXTRA = "the MCP server needs the extra `mcp`: pip install duetime[mcp]"


def mcp(
    target: Target,
    allow_writes: Annotated[
        bool, flag("Also offer later, cancel, reschedule, retry, pause, resume, receive.", "--allow-writes")
    ] = False,
    http: Annotated[
        str, option("HOST:PORT", "Serve HTTP at /mcp instead of standard input and output.", "--http")
    ] = "",
    journal: JournalOption = None,
    config: ConfigOption = None,
) -> None:
    """Let agents read queues, and change them if allowed, by the Model Context Protocol.

    An agent starts this command itself and talks to it on standard input and output, or connects to it with --http.
    Without --allow-writes all tools are read-only. The token decides what is possible on a server; over HTTP a caller's
    own token is used if it sends one.

    Examples:
        duetime mcp --url http://127.0.0.1:7777
        duetime mcp --url redis://localhost --allow-writes
        duetime mcp --http 127.0.0.1:7780
    """
    try:
        from duetime.mcp.server import McpOptions, make_server  # noqa: PLC0415 (an extra)
    except ImportError as error:
        raise InvalidSettings(EXTRA) from error

    is_server = target.store is None

    def doctor() -> list[dict[str, Any]]:
        return [asdict(one) for one in examine(target, deep=False)]

    def history(job_id: str, queue: str | None) -> list[dict[str, Any]]:
        entries = [
            one
            for one in read_job(journal_folder(target, journal, config), job_id)
            if isinstance(one, Entry) and one.namespace == target.space and queue in (None, one.queue)
        ]
        return [as_fields(entry) for life in lives_of(entries) for entry in life]

    host, port = _address(http) if http else ("", 0)
    if http and not is_loopback(host) and not (is_server and target.secret is None):
        raise InvalidSettings(
            f"--http must be a loopback address such as 127.0.0.1:7780, got {http!r}: its callers would use your "
            "store or token. To serve others, connect to a server with --url http://... and without a token"
        )
    check_exists(target.address)
    server = make_server(
        McpOptions(
            target.address,
            target.space,
            target.secret,
            allow_writes=allow_writes,
            pass_token=bool(http) and is_server,
            # These two read files and use the token of this command, so callers with tokens of their own get neither.
            history=None if http and is_server else history,
            doctor=None if http and is_server else doctor,
        )
    )
    asyncio.run(server.run_streamable_http_async(host=host, port=port) if http else server.run_stdio_async())


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > MAX_PORT:
        raise InvalidSettings(f"--http must be HOST:PORT, such as 127.0.0.1:7780, got {text!r}")
    return host.strip("[]"), int(port)
