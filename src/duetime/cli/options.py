"""The options that all commands share, and options as frozen dataclasses.

`takes_options` lets a command declare a parameter whose type is a dataclass of annotated fields; each field becomes
an option of the command. So a command with eight options is still a function of two or three parameters, and the
four global options are written once. They can be given before or after the command; after wins over before,
and both win over the environment.
"""

import dataclasses
import functools
import inspect
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Self, get_type_hints
from urllib.parse import urlsplit

import typer

from duetime.model.errors import InvalidRequest, InvalidSettings, StoreUnavailable
from duetime.model.masking import mask
from duetime.model.names import DEFAULT_NAMESPACE, Queue, check_queue

if TYPE_CHECKING:
    from duetime.cli.output import Answer
    from duetime.client import Client
    from duetime.stores.registry import Registry

DEFAULT_URL = "http://127.0.0.1:7777"
"""Where `duetime serve --dev` listens."""
API_PORT = 7777
ADMIN_PORT = 7778
"""The ports that `duetime serve` uses if no others are set."""
GLOBAL_PANEL = "Global options"


def file_exists(url: str) -> bool:
    """False for a SQLite store, or a group with one, that opening it would create."""
    from duetime.client.transport import store_url  # noqa: PLC0415 (help and completion do not wait for the import)

    if store_url(url) is None:
        return True
    from duetime.model.settings import pool_parts, sqlite_file  # noqa: PLC0415 (a call to a server needs no settings)

    files = [sqlite_file(part) for part in pool_parts(url).values() or [url]]
    return all(file is None or file.exists() for file in files)


def check_exists(url: str) -> None:
    """For commands that create no store. Raises InvalidSettings if a file is missing, as after a typing error."""
    if not file_exists(url):
        raise InvalidSettings(f"store must exist, got {mask(url)}, which has no file: check the URL")


def option(metavar: str | None, text: str, *names: str, panel: str | None = None, **more: Any) -> Any:
    """An option, called like its parameter unless it has `names`. A default of None is not shown."""
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=panel, **more)


def flag(text: str, *names: str, **more: Any) -> Any:
    """An option without a value."""
    return option(None, text, *names, **more)


def argument(metavar: str | None, text: str, **more: Any) -> Any:
    return typer.Argument(metavar=metavar, help=text, **more)


QueueArgument = Annotated[str, argument("QUEUE", "The queue's name.")]
IdArgument = Annotated[str, argument("ID", "The job's id.")]
YesOption = Annotated[bool, flag("Do not ask.", "--yes", "-y")]


@dataclass(frozen=True, kw_only=True)
class AnswerForm:
    """The one global option of a command that connects to no server and no store."""

    PANEL = GLOBAL_PANEL

    json: Annotated[bool, flag("Answer in JSON, one document per line.", "--json")] = False

    @cached_property
    def answer(self) -> "Answer":
        from duetime.cli.output import Answer  # noqa: PLC0415 (help and completion do not wait for the import)

        return Answer(as_json=self.json)

    def over(self, other: "Target") -> Self:
        """These options, and the other ones where these are not given."""
        given = {field.name: getattr(self, field.name) or getattr(other, field.name) for field in fields(self)}
        return dataclasses.replace(self, **given)


@dataclass(frozen=True, kw_only=True)
class Target(AnswerForm):
    """Which server or store the command connects to, with which token, and the form of its answer. None: not given."""

    url: Annotated[
        str | None,
        option(
            "URL",
            "A server (http://...) or a store (sqlite:///..., redis://..., postgresql://..., mysql://...). "
            f"DUETIME_URL, else {DEFAULT_URL}.",
        ),
    ] = None
    namespace: Annotated[
        str | None,
        option("NAME", f"The namespace of the queues. DUETIME_NAMESPACE, else {DEFAULT_NAMESPACE}."),
    ] = None
    token: Annotated[
        str | None,
        option("TOKEN", "The server's token. DUETIME_TOKEN keeps it out of the process list."),
    ] = None

    @property
    def is_chosen(self) -> bool:
        """Whether a URL was given."""
        return bool(self.url or os.environ.get("DUETIME_URL"))

    @property
    def address(self) -> str:
        return self.url or os.environ.get("DUETIME_URL") or DEFAULT_URL

    @property
    def store(self) -> str | None:
        """The URL of the store. None: the command connects to a server."""
        from duetime.client.transport import store_url  # noqa: PLC0415

        return store_url(self.address)

    @property
    def admin_address(self) -> str:
        """The URL of the server's admin API, or of a store if one was given: --url, else DUETIME_ADMIN_URL, else
        DUETIME_URL, else this machine. The API's usual port is replaced by the admin port, so `--url http://host:7777`
        works for every command. A server with accounts needs http://user:password@host:7778.
        """
        url = self.url or os.environ.get("DUETIME_ADMIN_URL") or self.address
        parts = urlsplit(url)
        if not parts.scheme.startswith("http") or parts.port != API_PORT:
            return url
        return parts._replace(netloc=f"{parts.netloc.removesuffix(str(API_PORT))}{ADMIN_PORT}").geturl()

    @property
    def space(self) -> str:
        return self.namespace or os.environ.get("DUETIME_NAMESPACE") or DEFAULT_NAMESPACE

    @property
    def secret(self) -> str | None:
        return self.token or os.environ.get("DUETIME_TOKEN") or None

    def connect(self, *, new: bool = False) -> "Client":
        """A command that adds something says `new`: it creates a SQLite file that does not exist."""
        from duetime.client import connect  # noqa: PLC0415 (help and completion do not wait for the import)

        if not new:
            check_exists(self.address)
        return connect(self.address, namespace=self.space, token=self.secret)

    def admin(
        self,
        method: str,
        path: str,
        on_registry: "Callable[[Registry], Awaitable[Any]]",
        *,
        new: bool = False,
        **sent: Any,
    ) -> Any:
        """The answer of the server's admin API, or of the same work on the registry of the store; `new` as above."""
        from duetime.client.store_link import send_admin  # noqa: PLC0415

        if not new:
            check_exists(self.admin_address)
        return send_admin(self.admin_address, method, path, on_registry, **sent)

    def queue(self, name: str) -> Queue:
        return check_queue(self.space, name)


def takes_options(function: Callable[..., None]) -> Callable[..., None]:
    """Gives the command one option per field of each parameter that is a dataclass."""
    parameters = inspect.signature(function, eval_str=True).parameters
    groups: dict[str, Any] = {
        name: one.annotation for name, one in parameters.items() if dataclasses.is_dataclass(one.annotation)
    }
    wants_context = "context" in parameters
    flat = [inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    for name, parameter in parameters.items():
        if name in groups:
            flat += _options(groups[name])
        elif name != "context":
            flat.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(function)
    def command(context: typer.Context, **values: Any) -> None:
        for name, group in groups.items():
            made = group(**{field.name: values.pop(field.name) for field in dataclasses.fields(group)})
            before = context.obj if isinstance(context.obj, Target) else Target()
            values[name] = made.over(before) if isinstance(made, AnswerForm) else made
        try:
            function(**values, **({"context": context} if wants_context else {}))
        except StoreUnavailable as error:
            target = next((one for one in values.values() if isinstance(one, Target)), None)
            raise located(error, target) if target else error from None

    command.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    return command


def _options(group: Any) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in dataclasses.fields(group):
        hints[field.name].__metadata__[0].rich_help_panel = getattr(group, "PANEL", None)
        default = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        yield inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if default is dataclasses.MISSING else default,
            annotation=hints[field.name],
        )


def located(error: StoreUnavailable, target: Target) -> StoreUnavailable:
    """Adds the server's address if no server answered: a user who gave none may not know the default one."""
    from duetime.client.transport import UNREACHABLE  # noqa: PLC0415
    from duetime.model.masking import mask  # noqa: PLC0415

    if not error.message.startswith(UNREACHABLE) or target.address in error.message:
        return error
    hint = "" if target.is_chosen else "; start one with `duetime serve --dev`, or name yours with --url or DUETIME_URL"
    return StoreUnavailable(f"{error.message} ({mask(target.address)}{hint})", **error.fields)


def parse_attributes(pairs: list[str]) -> Mapping[str, str]:
    attributes: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InvalidRequest(f"attribute must be NAME=VALUE, got {pair!r}")
        attributes[name] = value
    return attributes
