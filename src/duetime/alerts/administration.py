"""Reads and changes who receives alerts: a record of the registry, followed by every server within a second.

The admin API and the command line (on a store) call these functions. Changes return the new description.
"""

from typing import Any

import msgspec

from duetime.alerts.problems import FIRING, KEY, SETTINGS, AlertSettings, Firing, change_settings, read_settings
from duetime.alerts.senders import AlertSender, MailServer, check_address, mail_url
from duetime.model.errors import NotFound
from duetime.model.masking import MASK, mask
from duetime.model.names import check_channel
from duetime.stores.registry import Registry

TEST_TITLE = "Duetime: test alert"
TEST_TEXT = "This is a test. Nothing is wrong."


class AddressNotFound(NotFound):
    """There is no such address."""

    code = "address_not_found"


async def add_address(registry: Registry, address: str, channel: str = "") -> dict[str, Any]:
    """Send every alert to this address; with a channel, only the alerts of topics that name the channel."""
    check_address(address)
    name = check_channel(channel) if channel else ""

    def with_it(old: AlertSettings) -> AlertSettings:
        if name:
            return msgspec.structs.replace(old, channels={**old.channels, name: address})
        return msgspec.structs.replace(old, addresses=tuple(dict.fromkeys([*old.addresses, address])))

    await change_settings(registry, with_it)
    return await describe(registry)


async def remove_address(registry: Registry, name: str) -> dict[str, Any]:
    """`name` is an address, the masked form in which it is shown, or a channel. Raises AddressNotFound."""

    def without(old: AlertSettings) -> AlertSettings:
        channels = {key: one for key, one in old.channels.items() if key != name}
        left = msgspec.structs.replace(old.without_address(name), channels=channels)
        if left == old:
            raise AddressNotFound(f"no such alert address or channel: {mask(name)}")
        return left

    await change_settings(registry, without)
    return await describe(registry)


async def set_mail_server(registry: Registry, server: MailServer) -> dict[str, Any]:
    mail_url(server, server.sender)
    await change_settings(registry, lambda old: msgspec.structs.replace(old, mail_server=server))
    return await describe(registry)


async def send_test(registry: Registry, title: str = TEST_TITLE, text: str = TEST_TEXT) -> dict[str, Any]:
    """Send a test alert to every address. Returns the masked addresses that were reached and those that were not."""
    settings = read_settings(await registry.get(SETTINGS, KEY))
    addresses = list(dict.fromkeys([*settings.addresses, *settings.channels.values()]))
    if not addresses:
        raise AddressNotFound("no alert address is set: duetime alert add ADDRESS")
    missed = await AlertSender().send(addresses, title, text, server=settings.mail_server)
    return {
        "reached": [mask(one) for one in addresses if one not in missed],
        "not_reached": [mask(one) for one in missed],
    }


async def describe(registry: Registry) -> dict[str, Any]:
    """The alert settings without secrets, and the problems that last."""
    settings = read_settings(await registry.get(SETTINGS, KEY))
    server = settings.mail_server
    shown = msgspec.structs.asdict(server) | {"password": MASK if server.password else ""} if server else None
    firing = [
        (record.key, msgspec.json.decode(record.value, type=Firing)) for record in await registry.list_records(FIRING)
    ]
    return {
        "addresses": [mask(address) for address in settings.addresses],
        "channels": {name: mask(address) for name, address in settings.channels.items()},
        "mail_server": shown,
        "problems": [
            {"problem": key, "title": one.problem.title, "since": int(one.since * 1000)} for key, one in firing
        ],
    }
