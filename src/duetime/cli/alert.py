"""`duetime alert ...`: who receives alerts, and how.

The settings are a record in the registry, which every server follows within a second. The admin API of a server
changes it; so does a command that is given the URL of the registry's store.
"""

from dataclasses import dataclass
from typing import Annotated

import msgspec

from duetime.alerts import problems as alerts
from duetime.alerts.senders import MailServer
from duetime.cli.options import Target, argument, option
from duetime.cli.output import moment, safe
from duetime.model.clock import SystemClock
from duetime.model.errors import DuetimeError
from duetime.model.humanise import counted
from duetime.model.masking import mask_address
from duetime.model.names import is_mail

Address = Annotated[str, argument("ADDRESS", "A mail address, or a URL that apprise knows (slack://, dingtalk://).")]


class NotSent(DuetimeError):
    """An alert did not reach everybody."""

    code = "alert_not_sent"
    status = 502


def add(
    address: Address,
    target: Target,
    channel: Annotated[str, option("NAME", "Only for topics whose --alert has this name, not for everything.")] = "",
) -> None:
    """Send every alert to this address, or give it a name that topics can use.

    Examples:
        duetime alert add ops@example.com --url redis://localhost
        duetime alert add ntfy://ops-alerts --url redis://localhost
        duetime alert add ntfy://payments-alerts --channel payments --url redis://localhost
    """
    settings = target.admin(
        "POST",
        "/alerts",
        lambda registry: alerts.add_address(registry, address, channel),
        new=True,
        json={"address": address, "channel": channel},
    )
    waits = is_mail(address) and settings["mail_server"] is None
    when = "as soon as there is a mail server" if waits else "now"
    done = f"topics can send alerts to {{}} as {channel}" if channel else f"{{}} receives alerts {when}"
    target.answer.show(settings, done.format(mask_address(address)))
    if waits:
        target.answer.note("no mail server is set: duetime alert mail-server --host HOST --from ADDRESS")


def remove(address: Address, target: Target) -> None:
    """Stop sending alerts to this address, or to the channel of this name.

    Examples:
        duetime alert remove ops@example.com --url redis://localhost
    """
    settings = target.admin(
        "DELETE",
        "/alerts",
        lambda registry: alerts.remove_address(registry, address),
        params={"address": address},
    )
    target.answer.show(settings, f"{mask_address(address)} no longer receives alerts")


@dataclass(frozen=True)
class MailOptions:
    host: Annotated[str, option(None, "The mail server's name.")]
    sender: Annotated[str, option("ADDRESS", "Who the mails are from.", "--from")]
    port: Annotated[int, option(None, "0: the usual one for the security.")] = 0
    user: Annotated[str, option(None, "Empty: no login.")] = ""
    password: Annotated[
        str, option(None, "Better given in the environment.", envvar="DUETIME_MAIL_PASSWORD", show_default=False)
    ] = ""
    security: Annotated[str, option(None, "starttls, ssl or none.")] = "starttls"


def mail_server(options: MailOptions, target: Target) -> None:
    """Set the mail server that sends to plain mail addresses.

    Examples:
        duetime alert mail-server --host smtp.example.com --from duetime@example.com --url redis://localhost
    """
    server = MailServer(**vars(options))
    settings = target.admin(
        "PUT",
        "/alerts/mail-server",
        lambda registry: alerts.set_mail_server(registry, server),
        new=True,
        json=msgspec.to_builtins(server),
    )
    target.answer.show(settings, f"mails go through {safe(options.host)}")


def list_alerts(target: Target) -> None:
    """Show the recipients of alerts, and the open problems.

    Examples:
        duetime alert list --url redis://localhost
    """
    shown = target.admin("GET", "/alerts", alerts.describe)
    answer = target.answer
    if target.json:
        answer.document(shown)
        return
    now = SystemClock().now_ms()
    for address in shown["addresses"] or ("none: add one with `duetime alert add ADDRESS`",):
        answer.console.print(f"recipient {safe(address)}")
    for name, address in shown["channels"].items():
        answer.console.print(f"channel   {safe(name)}: {safe(address)}")
    if server := shown["mail_server"]:
        answer.console.print(f"mails     through {safe(server['host'])} from {safe(server['sender'])}")
    for one in shown["problems"]:
        answer.console.print(f"problem   {safe(one['title'])}, since {moment(one['since'], now)}")
    if not shown["problems"]:
        answer.console.print("problem   none")


def test(target: Target) -> None:
    """Send a test alert to every address and show which were reached.

    Examples:
        duetime alert test --url redis://localhost
    """
    sent = target.admin("POST", "/alerts/test", alerts.send_test)
    lines = [f"reached      {one}" for one in sent["reached"]]
    lines += [f"not reached  {one}" for one in sent["not_reached"]]
    target.answer.show(sent, "\n".join(lines))
    if missed := len(sent["not_reached"]):
        raise NotSent(f"not reached: {missed} of {counted(len(lines), 'address')}")
