"""`duetime alert ...`: who hears when something is wrong, and how.

The settings are a record in the registry of a store, which every server on it follows within a second; so these
commands want the URL of the store that has the registry, not a server's.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from duetime.alerts.problems import FIRING, KEY, SETTINGS, AlertSettings, Firing
from duetime.alerts.senders import AlertSender, MailServer, check_address, mail_url
from duetime.cli.options import Target, takes_options
from duetime.cli.output import Answer, moment, note, safe
from duetime.cli.store_access import with_store
from duetime.clock import SystemClock
from duetime.errors import DuetimeError, NotFound
from duetime.masking import MASK, mask
from duetime.names import check_channel, is_mail
from duetime.stores.registry import Registry

T = TypeVar("T")

Address = Annotated[
    str, typer.Argument(metavar="ADDRESS", help="A mail address, or a URL that apprise knows (slack://, dingtalk://).")
]


class AddressNotFound(NotFound):
    """There is no such address."""

    code = "address_not_found"


class NotSent(DuetimeError):
    """An alert did not reach everybody."""

    code = "alert_not_sent"
    status = 502


@takes_options
def add(
    address: Address,
    target: Target,
    channel: Annotated[
        str, typer.Option(metavar="NAME", help="Only for topics whose --alert has this name, not for everything.")
    ] = "",
) -> None:
    """Tell this address of everything that is wrong, or give it a name for topics."""
    check_address(address)
    name = check_channel(channel) if channel else ""

    def with_it(old: AlertSettings) -> AlertSettings:
        if name:
            return msgspec.structs.replace(old, channels={**old.channels, name: address})
        return msgspec.structs.replace(old, addresses=tuple(dict.fromkeys([*old.addresses, address])))

    settings = _change(target, with_it)
    done = f"topics may tell {mask(address)} as {name}" if name else f"{mask(address)} hears of alerts from now on"
    Answer(as_json=target.json).tell(_document(settings), done)
    if is_mail(address) and settings.mail_server is None and not target.json:
        note("no mail server is set yet: duetime alert mail-server --help")


@takes_options
def remove(address: Address, target: Target) -> None:
    """Tell this address, or the channel of this name, no more."""

    def without(old: AlertSettings) -> AlertSettings:
        channels = {name: one for name, one in old.channels.items() if name != address}
        left = msgspec.structs.replace(old.without_address(address), channels=channels)
        if left == old:
            raise AddressNotFound(f"{mask(address)} is not among the addresses and channels")
        return left

    Answer(as_json=target.json).tell(_document(_change(target, without)), f"{mask(address)} is told no more")


@dataclass(frozen=True)
class MailOptions:
    host: Annotated[str, typer.Option(help="The mail server's name.")]
    sender: Annotated[str, typer.Option("--from", metavar="ADDRESS", help="Who the mails are from.")]
    port: Annotated[int, typer.Option(help="0: the usual one for the security.")] = 0
    user: Annotated[str, typer.Option(help="Empty: no login.")] = ""
    password: Annotated[
        str, typer.Option(envvar="DUETIME_MAIL_PASSWORD", help="Better given in the environment.", show_default=False)
    ] = ""
    security: Annotated[str, typer.Option(help="starttls, ssl or none.")] = "starttls"


@takes_options
def mail_server(options: MailOptions, target: Target) -> None:
    """Set the mail server that plain mail addresses are reached through."""
    server = MailServer(
        options.host, options.sender, options.port, options.user, options.password, security=options.security
    )
    mail_url(server, options.sender)
    settings = _change(target, lambda old: msgspec.structs.replace(old, mail_server=server))
    Answer(as_json=target.json).tell(_document(settings), f"mails go through {safe(options.host)}")


@takes_options
def list_alerts(target: Target) -> None:
    """Show who is told, and what is wrong now."""

    async def look(registry: Registry) -> tuple[AlertSettings, list[tuple[str, Firing]]]:
        records = await registry.list_records(FIRING)
        firing = [(record.key, msgspec.json.decode(record.value, type=Firing)) for record in records]
        return (await _read(registry))[0], firing

    settings, firing = _run(target, look)
    answer = Answer(as_json=target.json)
    if target.json:
        problems = [{"problem": key, "title": one.problem.title, "since": int(one.since * 1000)} for key, one in firing]
        answer.document({**_document(settings), "problems": problems})
        return
    now = SystemClock().now_ms()
    for address in settings.addresses or ("nobody: duetime alert add ADDRESS",):
        answer.console.print(f"told      {mask(address)}")
    for name, address in settings.channels.items():
        answer.console.print(f"channel   {name}: {mask(address)}")
    if settings.mail_server:
        answer.console.print(f"mails     through {settings.mail_server.host} from {settings.mail_server.sender}")
    for _, one in firing:
        answer.console.print(f"wrong     {safe(one.problem.title)}, since {moment(int(one.since * 1000), now)}")
    if not firing:
        answer.console.print("wrong     nothing")


@takes_options
def test(target: Target) -> None:
    """Send a test alert to everybody and say who was reached."""

    async def send(registry: Registry) -> tuple[AlertSettings, list[str]]:
        settings, _ = await _read(registry)
        text = "This is a test. Nothing is wrong."
        unreached = await AlertSender().send(_all(settings), "Duetime: test alert", text, server=settings.mail_server)
        return settings, unreached

    settings, unreached = _run(target, send)
    addresses = _all(settings)
    if not addresses:
        raise AddressNotFound("nobody would be told: duetime alert add ADDRESS")
    reached = [mask(one) for one in addresses if one not in unreached]
    Answer(as_json=target.json).tell(
        {"reached": reached, "not_reached": [mask(one) for one in unreached]},
        "\n".join([f"reached      {one}" for one in reached] + [f"not reached  {mask(one)}" for one in unreached]),
    )
    if unreached:
        raise NotSent(f"{len(unreached)} of {len(addresses)} addresses were not reached")


def _all(settings: AlertSettings) -> list[str]:
    return list(dict.fromkeys([*settings.addresses, *settings.channels.values()]))


def _document(settings: AlertSettings) -> dict[str, Any]:
    """The alert settings as JSON, without secrets."""
    server = settings.mail_server
    shown = msgspec.structs.asdict(server) | {"password": MASK if server.password else ""} if server else None
    return {
        "addresses": [mask(address) for address in settings.addresses],
        "channels": {name: mask(address) for name, address in settings.channels.items()},
        "mail_server": shown,
    }


async def _read(registry: Registry) -> tuple[AlertSettings, int]:
    record = await registry.get(SETTINGS, KEY)
    if record is None:
        return AlertSettings(), 0
    return msgspec.json.decode(record.value, type=AlertSettings), record.version


def _change(target: Target, change: Callable[[AlertSettings], AlertSettings]) -> AlertSettings:
    async def write(registry: Registry) -> AlertSettings:
        old, version = await _read(registry)
        new = change(old)
        await registry.put(SETTINGS, KEY, msgspec.json.encode(new), if_version=version)
        return new

    return _run(target, write)


def _run(target: Target, work: Callable[[Registry], Awaitable[T]]) -> T:
    refusal = "alerts are kept in the registry: name its store with --url, such as --url redis://localhost"
    return with_store(target, lambda store: work(store.registry), refusal)
