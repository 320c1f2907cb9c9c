"""The page Alerts: what was wrong before, and who receives alerts; and the page Mail: the mail server, with a test."""

from collections.abc import Sequence
from importlib.util import find_spec

from starlette.responses import Response

from duetime.alerts import problems as alerts
from duetime.alerts.problems import KEY, PAST, SETTINGS, PastAlert, read_past, read_settings
from duetime.alerts.senders import AlertSender, MailServer, check_address
from duetime.console.forms import FormReader, whole_number
from duetime.console.pages.overview import pool_health, read_problems
from duetime.console.problems import parse_key
from duetime.console.visit import Visit, link
from duetime.model.errors import InvalidRequest, InvalidSettings, NotFound
from duetime.model.masking import mask_address
from duetime.model.names import check_channel, is_mail

MOST_PORT = 65_535


async def show_alerts(visit: Visit) -> Response:
    parts = visit.parts
    await parts.registry_copy.refresh()
    settings = read_settings(parts.registry_copy.get(SETTINGS, KEY))
    snapshot = await parts.live.snapshots.read()
    problems = await read_problems(
        visit, snapshot, await pool_health(visit), await parts.live.processes(), await parts.live.meters.journal()
    )
    addresses = [*settings.addresses, *settings.channels.values()]
    return await visit.page(
        "alerts.html",
        problems=problems,
        past=[(one, _past_title(visit, one)) for one in read_past(parts.registry_copy.get(PAST, KEY))],
        addresses=[mask_address(address) for address in settings.addresses],
        channels={name: mask_address(address) for name, address in settings.channels.items()},
        needs_mail_server=settings.mail_server is None and any(is_mail(one) for one in addresses),
        can_send=find_spec("apprise") is not None,
    )


def _past_title(visit: Visit, past: PastAlert) -> str:
    """What the problem was, in the visitor's language; the alert's own title if its key does not say."""
    kind, pool, queue = parse_key(past.key)
    return visit.say(f"past.{kind}", pool=pool, queue=queue) if kind != "other" else past.title


async def add_address(visit: Visit) -> Response:
    """With a name the address is a channel for topics; without one it receives every alert."""
    form = FormReader(visit)
    address = form.read("address", lambda text: _check(text.strip()), "")
    name = form.read("channel", lambda text: check_channel(text.strip()) if text.strip() else "", "")
    form.check()
    await alerts.add_address(visit.parts.pools.registry, address, name)
    await visit.log("add-address", mask_address(address), name)
    return await _saved(visit, "alerts", visit.say("alert.added", address=mask_address(address)))


async def _saved(visit: Visit, page: str, text: str) -> Response:
    await visit.parts.registry_copy.refresh()
    return visit.go(link(page), text)


def _check(address: str) -> str:
    try:
        return check_address(address)
    except InvalidSettings as missing:  # apprise is not installed
        raise InvalidRequest(missing.message) from None


async def remove_address(visit: Visit) -> Response:
    """The address is named by the text that the page shows, with its secrets masked, or by its channel."""
    name = visit.field("channel") or visit.field("address")
    try:
        await alerts.remove_address(visit.parts.pools.registry, name)
    except alerts.AddressNotFound:
        raise NotFound(visit.say("alert.no_address")) from None
    await visit.log("remove-address", name)
    return await _saved(visit, "alerts", visit.say("alert.removed", address=name))


async def show_mail(visit: Visit) -> Response:
    await visit.parts.registry_copy.refresh()
    settings = read_settings(visit.parts.registry_copy.get(SETTINGS, KEY))
    known = [one for one in [*settings.addresses, *settings.channels.values()] if is_mail(one)]
    return await visit.page(
        "mail.html",
        mail_server=settings.mail_server,
        test_address=known[0] if known else "",
        can_send=find_spec("apprise") is not None,
    )


async def set_mail_server(visit: Visit) -> Response:
    form = FormReader(visit)
    port = form.read("port", lambda text: whole_number(text, most=MOST_PORT), 0)
    for name in ("host", "sender"):
        if not visit.field(name).strip():
            form.refuse(name, visit.say("form.required"))
    form.check()

    # The page never shows the password, so an empty field keeps it.
    known = read_settings(await visit.parts.pools.registry.get(SETTINGS, KEY)).mail_server
    server = MailServer(
        visit.field("host").strip(),
        visit.field("sender").strip(),
        port,
        visit.field("user").strip(),
        visit.field("password") or (known.password if known else ""),
        security=visit.field("security"),
    )
    await alerts.set_mail_server(visit.parts.pools.registry, server)
    await visit.log("mail-server", server.host)
    return await _saved(visit, "mail", visit.say("alert.mail_saved"))


async def test_mail(visit: Visit) -> Response:
    """Send a test mail with the settings that are saved."""
    address = visit.field("to").strip()
    server = read_settings(await visit.parts.pools.registry.get(SETTINGS, KEY)).mail_server
    # Not refused as a form: the page has another one, whose fields would be emptied.
    if server is None or not is_mail(address):
        why = "alert.needs_server" if server is None else "alert.not_mail"
        return visit.go(link("mail"), visit.say(why, addresses=address), kind="problem")
    missed = await _send_test(visit, [address], server)
    await visit.log("test-mail", address, "not reached" if missed else "")
    if missed:
        return visit.go(link("mail"), visit.say("alert.test_missed", addresses=address), kind="problem")
    return visit.go(link("mail"), visit.say("alert.mail_tested", address=address))


async def _send_test(visit: Visit, addresses: Sequence[str], server: MailServer | None) -> list[str]:
    """The addresses that were not reached."""
    try:
        return await AlertSender().send(addresses, "Duetime: test", visit.say("alert.test_text"), server=server)
    except InvalidSettings as error:
        raise InvalidRequest(error.message) from None


async def test_alert(visit: Visit) -> Response:
    """Send a test, and say for each address that was not reached why."""
    settings = read_settings(await visit.parts.pools.registry.get(SETTINGS, KEY))
    everybody: Sequence[str] = [*settings.addresses, *settings.channels.values()]
    if not everybody:
        raise InvalidRequest(visit.say("alert.nobody"))
    mails = [one for one in everybody if is_mail(one)]
    if mails and settings.mail_server is None:
        raise InvalidRequest(visit.say("alert.needs_server", addresses=", ".join(mails)))
    missed = await _send_test(visit, everybody, settings.mail_server)
    await visit.log("test-alert", f"{len(everybody)}", f"not reached: {len(missed)}")
    if missed:
        text = visit.say("alert.test_missed", addresses=", ".join(mask_address(one) for one in missed))
        return visit.go(text=text, kind="problem")
    return visit.go(text=visit.say("alert.test_sent", count=len(everybody)))
