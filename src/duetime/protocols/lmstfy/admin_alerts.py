"""The admin routes for alerts: who receives them, the mail server, and a test. Not in lmstfy; bodies are JSON."""

from collections.abc import Awaitable
from typing import Any, TypeVar

import msgspec

from duetime.alerts import problems as alerts
from duetime.alerts.senders import MailServer
from duetime.model.errors import DuetimeError
from duetime.protocols.lmstfy.admin_call import AdminCall
from duetime.protocols.lmstfy.options import LmstfyParts
from duetime.protocols.lmstfy.wire import LmstfyAnswer, refused, to_json

T = TypeVar("T")


class NewAddress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    address: str
    channel: str = ""


async def show(parts: LmstfyParts, call: AdminCall) -> LmstfyAnswer:
    return LmstfyAnswer(200, to_json(await alerts.describe(parts.pools.registry)))


async def add(parts: LmstfyParts, call: AdminCall) -> LmstfyAnswer:
    wanted = await _read(call, NewAddress)
    return await _change(parts, alerts.add_address(parts.pools.registry, wanted.address, wanted.channel))


async def remove(parts: LmstfyParts, call: AdminCall) -> LmstfyAnswer:
    """Parameter: `address`, an address as it is shown, or a channel."""
    return await _change(parts, alerts.remove_address(parts.pools.registry, call.query.get("address", "")))


async def set_mail_server(parts: LmstfyParts, call: AdminCall) -> LmstfyAnswer:
    return await _change(parts, alerts.set_mail_server(parts.pools.registry, await _read(call, MailServer)))


async def send_test(parts: LmstfyParts, call: AdminCall) -> LmstfyAnswer:
    sent = await _refusing(alerts.send_test(parts.pools.registry))
    return LmstfyAnswer(200, to_json(sent))


async def _read(call: AdminCall, form: type[T]) -> T:
    try:
        return msgspec.json.decode(await call.body(), type=form)
    except msgspec.ValidationError as error:
        raise refused(400, str(error)) from None
    except msgspec.DecodeError as error:
        raise refused(400, f"body must be JSON: {error}") from None


async def _change(parts: LmstfyParts, change: Awaitable[dict[str, Any]]) -> LmstfyAnswer:
    shown = await _refusing(change)
    await parts.registry_copy.refresh()
    return LmstfyAnswer(200, to_json(shown))


async def _refusing(work: Awaitable[T]) -> T:
    """Answer what the caller did wrong with its status; other failures go on to the admin API's own handling."""
    try:
        return await work
    except DuetimeError as error:
        if error.status >= 500:
            raise
        raise refused(error.status, error.message) from None
