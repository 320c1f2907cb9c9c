"""The page of pools: the state of each store, and who receives alerts."""

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
from starlette.responses import Response

from duetime.alerts.problems import KEY, PAST, SETTINGS, AlertSettings, change_settings, read_past, read_settings
from duetime.alerts.senders import AlertSender, MailServer, check_address, mail_url
from duetime.console.live import ProcessState
from duetime.console.pages.overview import firing, pool_health
from duetime.console.visit import Visit
from duetime.model.errors import InvalidRequest, InvalidSettings, NotFound
from duetime.model.masking import mask
from duetime.model.names import check_channel
from duetime.model.settings import group_members
from duetime.stores.registry import GROUP_DRAIN, read_drain, set_drain


async def show_pools(visit: Visit) -> Response:
    parts = visit.parts
    await parts.registry_copy.refresh()
    settings = read_settings(parts.registry_copy.get(SETTINGS, KEY))
    errors = parts.pools.errors()
    return visit.page(
        "pools.html",
        pools=[(one, mask(parts.settings.pools[one.name]), errors.get(one.name)) for one in await pool_health(visit)],
        members={name: _members(url) for name, url in parts.settings.pools.items()},
        parked=_sum_parked(await parts.live.processes()),
        totals=await parts.live.totals.pool_totals(),
        problems=firing(visit),
        past=read_past(parts.registry_copy.get(PAST, KEY)),
        addresses=[mask(address) for address in settings.addresses],
        channels={name: mask(address) for name, address in settings.channels.items()},
        mail_server=settings.mail_server,
    )


def _members(url: str) -> list[tuple[str, str, bool]]:
    """The stores of a group: name, URL without secrets, and whether the settings let it drain."""
    return [(name, mask(address), drains) for name, address, drains in group_members(url)]


async def drain(visit: Visit) -> Response:
    """Let a member of a group take no new jobs; what it has is delivered."""
    return await _set_drain(visit, drains=True)


async def undrain(visit: Visit) -> Response:
    return await _set_drain(visit, drains=False)


async def _set_drain(visit: Visit, *, drains: bool) -> Response:
    pool, member = visit.pool(), visit.field("member")
    members = group_members(visit.parts.settings.pools.get(pool, ""))
    if member not in [name for name, _, _ in members]:
        raise NotFound(visit.say("pool.no_member"))
    registry = visit.engine().store.registry
    draining = read_drain(await registry.get(GROUP_DRAIN, pool)) | {name for name, _, leaves in members if leaves}
    if drains and draining | {member} >= {name for name, _, _ in members}:
        raise InvalidRequest(visit.say("pool.last_member"))
    await set_drain(registry, pool, member, drains=drains)
    await visit.log("drain" if drains else "undrain", f"{pool} {member}")
    return visit.go(text=visit.say("pool.drain_set" if drains else "pool.drain_ended", member=member))


def _sum_parked(processes: Sequence[ProcessState]) -> dict[str, int]:
    sums = Counter[str]()
    for process in processes:
        sums.update(process.parked)
    return dict(sums)


async def _change(visit: Visit, change: Callable[[AlertSettings], AlertSettings]) -> None:
    await change_settings(visit.parts.pools.registry, change)
    await visit.parts.registry_copy.refresh()


async def add_address(visit: Visit) -> Response:
    """With a name the address is a channel for topics; without one it receives every alert."""
    address, name = visit.field("address").strip(), visit.field("channel").strip()
    _check(visit, address)
    if name:
        check_channel(name)
        await _change(visit, lambda old: msgspec.structs.replace(old, channels={**old.channels, name: address}))
    else:
        await _change(
            visit,
            lambda old: msgspec.structs.replace(old, addresses=tuple(dict.fromkeys([*old.addresses, address]))),
        )
    await visit.log("add-address", mask(address), name)
    return visit.go(text=visit.say("alert.added", address=mask(address)))


def _check(visit: Visit, address: str) -> None:
    try:
        check_address(address)
    except InvalidSettings as missing:  # apprise is not installed
        raise InvalidRequest(missing.message) from None


async def remove_address(visit: Visit) -> Response:
    """The address is named by the text that the page shows, with its secrets masked, or by its channel."""
    shown, name = visit.field("address"), visit.field("channel")

    def without(old: AlertSettings) -> AlertSettings:
        if name:
            return msgspec.structs.replace(old, channels={key: one for key, one in old.channels.items() if key != name})
        left = old.without_address(shown)
        if left == old:
            raise NotFound(visit.say("alert.no_address"))
        return left

    await _change(visit, without)
    await visit.log("remove-address", shown or name)
    return visit.go(text=visit.say("alert.removed", address=shown or name))


async def set_mail_server(visit: Visit) -> Response:
    port = visit.field("port").strip() or "0"
    if not port.isdigit() or int(port) > 65_535:
        raise InvalidRequest(f"port: {port[:40]!r} is not a port")

    def with_server(old: AlertSettings) -> AlertSettings:
        # The page never shows the password, so an empty field keeps it.
        kept = old.mail_server.password if old.mail_server else ""
        server = MailServer(
            visit.field("host").strip(),
            visit.field("sender").strip(),
            int(port),
            visit.field("user").strip(),
            visit.field("password") or kept,
            security=visit.field("security"),
        )
        mail_url(server, server.sender)
        return msgspec.structs.replace(old, mail_server=server)

    await _change(visit, with_server)
    await visit.log("mail-server", visit.field("host"))
    return visit.go(text=visit.say("alert.mail_saved"))


async def test_alert(visit: Visit) -> Response:
    settings = read_settings(await visit.parts.pools.registry.get(SETTINGS, KEY))
    everybody: Sequence[str] = [*settings.addresses, *settings.channels.values()]
    if not everybody:
        raise InvalidRequest(visit.say("alert.nobody"))
    try:
        missed = await AlertSender().send(
            everybody, "Duetime: test", visit.say("alert.test_text"), server=settings.mail_server
        )
    except InvalidSettings as error:
        raise InvalidRequest(error.message) from None
    await visit.log("test-alert", f"{len(everybody)}", f"not reached: {len(missed)}")
    if missed:
        text = visit.say("alert.test_missed", addresses=", ".join(mask(one) for one in missed))
        return visit.go(text=text, kind="problem")
    return visit.go(text=visit.say("alert.test_sent", count=len(everybody)))
