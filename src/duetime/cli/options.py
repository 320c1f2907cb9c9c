"""The options that every command shares, and how options travel: as one frozen dataclass.

`takes_options` lets a command declare a parameter whose type is a dataclass of annotated fields; each field becomes
an option of the command. So a command with eight options is still a function of two or three parameters, and the
four global options are written once. They may stand before the command or after it; what stands after it wins,
then what stands before it, then the environment.
"""

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints
from urllib.parse import urlsplit

import typer

from duetime.model.clock import SystemClock
from duetime.model.errors import InvalidRequest, InvalidTime, StoreUnavailable
from duetime.model.names import DEFAULT_NAMESPACE, Queue, check_queue
from duetime.model.when import When, read_when

if TYPE_CHECKING:
    from duetime.client import Client

DEFAULT_URL = "http://127.0.0.1:7777"
"""Where `duetime serve --dev` listens."""
API_PORT = 7777
ADMIN_PORT = 7778
"""The ports that `duetime serve` uses if no others are set."""
GLOBAL_PANEL = "Global options"


JsonFlag = Annotated[
    bool, typer.Option("--json", help="Answer in JSON, one document per line.", rich_help_panel=GLOBAL_PANEL)
]


@dataclass(frozen=True)
class Target:
    """Where the command goes, as whom, and in which form it answers. None: not given here."""

    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="A server (http://...) or a store (sqlite:///..., redis://..., postgresql://..., mysql://...). "
            f"DUETIME_URL, else {DEFAULT_URL}.",
            show_default=False,
            rich_help_panel=GLOBAL_PANEL,
        ),
    ] = None
    namespace: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"The namespace of the queues. DUETIME_NAMESPACE, else {DEFAULT_NAMESPACE}.",
            show_default=False,
            rich_help_panel=GLOBAL_PANEL,
        ),
    ] = None
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            help="What a server asks for. DUETIME_TOKEN keeps it out of the process list.",
            show_default=False,
            rich_help_panel=GLOBAL_PANEL,
        ),
    ] = None
    json: JsonFlag = False

    def over(self, other: "Target") -> "Target":
        """These options, and the other ones where these say nothing."""
        return dataclasses.replace(
            self,
            url=self.url or other.url,
            namespace=self.namespace or other.namespace,
            token=self.token or other.token,
            json=self.json or other.json,
        )

    @property
    def is_chosen(self) -> bool:
        """Whether a URL was given."""
        return bool(self.url or os.environ.get("DUETIME_URL"))

    @property
    def address(self) -> str:
        return self.url or os.environ.get("DUETIME_URL") or DEFAULT_URL

    @property
    def store(self) -> str | None:
        """The store's URL, if one was given."""
        from duetime.client.transport import is_http  # noqa: PLC0415

        return self.address if self.is_chosen and not is_http(self.address) else None

    @property
    def admin_address(self) -> str:
        """The URL of the server's admin API, or of a store if one was given: --url, else DUETIME_ADMIN_URL, else
        DUETIME_URL, else this machine. The API's usual port stands for the admin port, so `--url http://host:7777`
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

    def connect(self) -> "Client":
        from duetime.client import connect  # noqa: PLC0415 (help and completion do not wait for the import)

        return connect(self.address, namespace=self.space, token=self.secret)

    def queue(self, name: str) -> Queue:
        return check_queue(self.space, name)


@dataclass(frozen=True)
class AnswerForm:
    """The one global option of a command that goes to no server and no store."""

    json: JsonFlag = False

    def over(self, other: Target) -> "AnswerForm":
        return AnswerForm(self.json or other.json)


def takes_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give the command one option per field of each parameter that is a dataclass."""
    signature = inspect.signature(function, eval_str=True)
    groups = {name: one.annotation for name, one in signature.parameters.items() if _is_group(one.annotation)}
    flat: list[inspect.Parameter] = [
        inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    ]
    for parameter in signature.parameters.values():
        if parameter.name not in groups:
            flat.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        hints = get_type_hints(parameter.annotation, include_extras=True)
        for field in dataclasses.fields(parameter.annotation):
            flat.append(
                inspect.Parameter(
                    field.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=_default(field),
                    annotation=hints[field.name],
                )
            )

    @functools.wraps(function)
    def command(context: typer.Context, **values: Any) -> None:
        for name, group in groups.items():
            made = group(**{field.name: values.pop(field.name) for field in dataclasses.fields(group)})
            values[name] = made.over(given_before(context)) if isinstance(made, Target | AnswerForm) else made
        try:
            function(**values)
        except StoreUnavailable as error:
            target = next((one for one in values.values() if isinstance(one, Target)), None)
            raise located(error, target) if target else error from None

    command.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    return command


def located(error: StoreUnavailable, target: Target) -> StoreUnavailable:
    """Adds the server's address if no server answered: a user who gave none may not know the default one."""
    from duetime.client.transport import UNREACHABLE  # noqa: PLC0415
    from duetime.model.masking import mask  # noqa: PLC0415

    if not error.message.startswith(UNREACHABLE) or target.address in error.message:
        return error
    hint = "" if target.is_chosen else "; start one with `duetime serve --dev`, or name yours with --url or DUETIME_URL"
    return StoreUnavailable(f"{error.message} ({mask(target.address)}{hint})", **error.fields)


def given_before(context: typer.Context) -> Target:
    """The global options that stood before the command."""
    return context.obj if isinstance(context.obj, Target) else Target()


def _is_group(annotation: object) -> bool:
    return isinstance(annotation, type) and dataclasses.is_dataclass(annotation)


def _default(field: "dataclasses.Field[Any]") -> object:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default


def parse_when(text: str) -> When:
    """A delay (`10s`, `5 minutes`, `90`) or an instant (`tomorrow 09:00`, RFC 3339, epoch milliseconds); times without
    a zone are local.
    """
    when = read_when(text, now_ms=SystemClock().now_ms(), zone=None)
    if when.delay_ms is not None and when.delay_ms < 0:
        raise InvalidTime(f"time must not be in the past, got {text!r}")
    return when


def parse_attributes(pairs: list[str]) -> Mapping[str, str]:
    attributes: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InvalidRequest(f"an attribute is written name=value: {pair!r}")
        attributes[name] = value
    return attributes
