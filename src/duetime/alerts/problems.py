"""Alerts: one process sends one alert for a problem and one for its end; and the settings that say who receives them.

A problem that lasts is a record in the registry while it lasts: the process that writes it sends the alert, the one
that removes it sends the recovery notice, so fifty processes that see the same problem send one mail. Processes check
at different moments, began at different times and may reach different stores. So each process that sees the problem
renews its record, and the problem is over when a process finds it gone and nobody has renewed it for a while. While the
registry itself cannot be reached, one process per machine, which holds a lock file, sends the alerts. An event that is
over when it is seen, such as a callback that was given up, is sent immediately and then at most once in five minutes,
with the number of those in between.

The settings are a record of the registry, too, which every server follows within a second. The admin API and the
command line (on a store) change them with the functions here, which return the new description.
"""

import asyncio
import hashlib
import logging
import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from duetime.alerts.chinese import in_chinese
from duetime.alerts.senders import AlertSender, MailServer, check_address, check_mail_server
from duetime.engine.registry_copy import RegistryCopy
from duetime.model.clock import Clock, SystemClock
from duetime.model.errors import DuetimeError, InvalidRequest, InvalidSettings, NotFound, VersionConflict
from duetime.model.masking import MASK, mask_address
from duetime.model.names import check_channel, is_mail, is_mail_in
from duetime.stores.registry import Record, Registry

log = logging.getLogger("duetime.alerts")

SETTINGS = "alerts"
KEY = "settings"
FIRING = "alert"
PAST = "alert-past"
KEPT_PAST = 50
EVENT_PAUSE_MS = 300_000
RENEW_S = 5.0
"""Age at which the record of a problem is written again by a process that still sees the problem."""
QUIET_S = 30.0
"""How long nobody has seen a problem before it is over: more than two scans of what grows slowly, and a renewal."""
TEST_TITLE = "Duetime: test alert"
TEST_TEXT = "This is a test. Nothing is wrong."


class AlertSettings(Struct, frozen=True, omit_defaults=True):
    """The addresses that receive every alert, the mail server for plain mail addresses, and the named addresses
    that topics use. A record of the registry.
    """

    addresses: tuple[str, ...] = ()
    mail_server: MailServer | None = None
    channels: dict[str, str] = {}

    def without_address(self, named: str) -> "AlertSettings":
        """The settings without the address that is named in full or as `mask_address` shows it; the same if there is
        none. Raises InvalidRequest if several addresses are shown as this text.
        """
        found = [one for one in self.addresses if one == named] or [
            one for one in self.addresses if mask_address(one) == named
        ]
        if len(found) > 1:
            raise InvalidRequest(
                f"{len(found)} addresses are shown as {named!r}; give the address in full: duetime alert remove ADDRESS"
            )
        return msgspec.structs.replace(self, addresses=tuple(one for one in self.addresses if one not in found))


class Problem(Struct, frozen=True):
    """`title` fits a subject line; `text` says what to do; `addresses`, as topics have them, receive it too."""

    title: str
    text: str
    addresses: tuple[str, ...] = ()


class AlertReport(NamedTuple):
    """The findings of one observer: current problems, and recorded problems that are over."""

    problems: Mapping[str, Problem] = {}
    ended: Collection[str] = ()


class Firing(Struct, frozen=True):
    """The record of a problem that lasts. Times are epoch seconds by the clock of the process that wrote it."""

    problem: Problem
    since: float
    notified_at: float


class PastAlert(Struct, frozen=True):
    """A problem that is over. Times are epoch seconds. `key` is the problem's."""

    title: str
    text: str
    since: float
    ended_at: float
    key: str = ""


def read_past(record: Record | None) -> list[PastAlert]:
    """Newest first."""
    return msgspec.json.decode(record.value, type=list[PastAlert]) if record else []


def read_settings(record: Record | None) -> AlertSettings:
    return msgspec.json.decode(record.value, type=AlertSettings) if record else AlertSettings()


async def change_settings(registry: Registry, change: Callable[[AlertSettings], AlertSettings]) -> AlertSettings:
    """Write the settings that `change` makes of those in the registry; it is called again if another writer was first.

    Whatever `change` raises is raised, and nothing is written then.
    """
    while True:
        record = await registry.get(SETTINGS, KEY)
        changed = change(read_settings(record))
        try:
            await registry.put(SETTINGS, KEY, msgspec.json.encode(changed), if_version=record.version if record else 0)
        except VersionConflict:
            continue
        return changed


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
            raise AddressNotFound(f"no such alert address or channel: {mask_address(name)}")
        return left

    await change_settings(registry, without)
    return await describe(registry)


async def set_mail_server(registry: Registry, server: MailServer) -> dict[str, Any]:
    check_mail_server(server)
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
        "reached": [mask_address(one) for one in addresses if one not in missed],
        "not_reached": [mask_address(one) for one in missed],
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
        "addresses": [mask_address(address) for address in settings.addresses],
        "channels": {name: mask_address(address) for name, address in settings.channels.items()},
        "mail_server": shown,
        "problems": [
            {"problem": key, "title": one.problem.title, "since": int(one.since * 1000)} for key, one in firing
        ],
    }


class Alerts:
    """An async context manager: leaving it waits for what is being sent, up to the sender's deadline."""

    def __init__(
        self,
        registry: Callable[[], Registry],
        registry_copy: RegistryCopy,
        *,
        deployment: str,
        repeat_s: float = 3600,
        clock: Clock | None = None,
        mail_domains: Collection[str] = (),
    ) -> None:
        """`deployment` distinguishes processes that share a registry from others on the machine. After `repeat_s` an
        alert of a problem that still lasts is sent again. Mail to addresses of topics goes to `mail_domains` only.
        """
        self._registry = registry
        self._registry_copy = registry_copy
        self._repeat_s = repeat_s
        self._mail_domains = mail_domains
        self.language = "en"
        """That of what is sent: en or zh."""
        self._clock = clock or SystemClock()
        self._renewed: dict[str, tuple[int, float]] = {}
        self._sender = AlertSender()
        self._deployment_lock = DeploymentLock(deployment)
        self._sending: set[asyncio.Task[None]] = set()
        self._local: dict[str, Firing] = {}
        self._suppressed: dict[tuple[str, str], int] = {}
        self._sent_at: dict[tuple[str, str], float] = {}
        self._known = AlertSettings()

    async def __aenter__(self) -> "Alerts":
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*self._sending, return_exceptions=True)
        self._deployment_lock.close()

    # --- problems that last

    async def judge(
        self, problems: Mapping[str, Problem], judged: Callable[[str], bool], ended: Collection[str] = ()
    ) -> None:
        """Compare what is wrong now with the records. A recorded problem that is missing in `problems` is over if
        `judged` says that this process can tell, and no other process has seen it for a while; those of `ended` are
        over now.
        """
        before = self._renewed
        firing, ages = self._firing(), self._ages()
        for key, problem in problems.items():
            if key not in firing:
                # If it ended since the last round, its observer here has not heard of that yet.
                if key not in before:
                    await self._fire(key, problem)
            elif time.time() - firing[key].notified_at >= self._repeat_s:
                await self._remind(key, problem, firing[key])
            elif ages.get(key, 0.0) >= RENEW_S:
                await self._replace(key, firing[key])
        for key in firing.keys() - problems.keys():
            if key in ended or (judged(key) and (key in self._local or ages[key] >= QUIET_S)):
                await self._end(key, firing[key])

    def _firing(self) -> Mapping[str, Firing]:
        records = self._registry_copy.list_records(FIRING)
        return {one.key: msgspec.json.decode(one.value, type=Firing) for one in records} | self._local

    def _ages(self) -> Mapping[str, float]:
        """How long ago this process first saw each record as it is now; clocks of other machines do not count."""
        now = self._clock.monotonic()
        self._renewed = {
            one.key: seen if (seen := self._renewed.get(one.key)) and seen[0] == one.version else (one.version, now)
            for one in self._registry_copy.list_records(FIRING)
        }
        return {key: now - since for key, (_, since) in self._renewed.items()}

    async def _fire(self, key: str, problem: Problem) -> None:
        firing = Firing(problem, time.time(), time.time())
        try:
            await self._registry().put(FIRING, key, msgspec.json.encode(firing), if_version=0)
        except VersionConflict:
            return
        except DuetimeError:
            self._local[key] = firing
            if not self._deployment_lock.is_leader():
                return
        log.warning("alert", extra={"problem": key, "title": problem.title})
        self._notify(problem.addresses, problem.title, problem.text)

    async def _remind(self, key: str, problem: Problem, firing: Firing) -> None:
        still = msgspec.structs.replace(firing, problem=problem, notified_at=time.time())
        if key in self._local:
            self._local[key] = still
            is_leader = self._deployment_lock.is_leader()
        else:
            is_leader = await self._replace(key, still)
        if is_leader:
            self._notify(problem.addresses, f"still: {problem.title}", f"{problem.text}\n\n{_lasting(firing)}")

    async def _replace(self, key: str, firing: Firing) -> bool:
        record = self._registry_copy.get(FIRING, key)
        try:
            if record is None:
                return False
            await self._registry().put(FIRING, key, msgspec.json.encode(firing), if_version=record.version)
        except DuetimeError:
            return False
        return True

    async def _end(self, key: str, firing: Firing) -> None:
        record = self._registry_copy.get(FIRING, key)
        try:
            # The version: if another process has just renewed the record, it still sees the problem.
            removed = record is not None and await self._registry().delete(FIRING, key, if_version=record.version)
        except DuetimeError:
            if key not in self._local:
                return  # it is still recorded, and ended when the registry is back
            removed = False
        ours = self._deployment_lock.is_leader() if self._local.pop(key, None) else removed
        if ours:
            await self._remember(key, firing)
            log.info("alert_ended", extra={"problem": key, "title": firing.problem.title})
            self._notify(firing.problem.addresses, f"over: {firing.problem.title}", _lasting(firing))

    async def _remember(self, key: str, firing: Firing) -> None:
        """Add a problem that is over to the record of past ones, which the console shows."""
        past = PastAlert(firing.problem.title, firing.problem.text, firing.since, time.time(), key)
        while True:
            try:
                record = await self._registry().get(PAST, KEY)
                value = msgspec.json.encode([past, *read_past(record)][:KEPT_PAST])
                await self._registry().put(PAST, KEY, value, if_version=record.version if record else 0)
            except VersionConflict:
                continue
            except DuetimeError as error:
                log.info("past_alert_not_kept", extra={"title": past.title, "error": error.message})
            return

    # --- events

    async def event(self, kind: str, subject: str, text: str, addresses: Sequence[str] = ()) -> None:
        """Something happened. One alert of each (kind, subject) is sent in five minutes, over all processes."""
        name = (kind, subject)
        try:
            counter = await self._registry().increment(f"alert:{kind}:{subject}", life_ms=EVENT_PAUSE_MS)
            first = counter.value == 1
        except DuetimeError:
            first = time.monotonic() - self._sent_at.get(name, -math.inf) >= EVENT_PAUSE_MS / 1000
        if not first:
            self._suppressed[name] = self._suppressed.get(name, 0) + 1
            return
        self._sent_at[name] = time.monotonic()
        if before := self._suppressed.pop(name, 0):
            text = f"{text}\n\n{before} more since the last notice."
        log.warning("alert", extra={"problem": kind, "title": subject})
        self._notify(addresses, subject, text)

    # --- sending

    def settings(self) -> AlertSettings:
        """The addresses as last read: alerts are needed most while the registry is unavailable."""
        try:
            self._known = read_settings(self._registry_copy.get(SETTINGS, KEY))
        except msgspec.DecodeError as error:
            log.warning("alert_settings_unreadable", extra={"error": str(error)})
        return self._known

    def _notify(self, addresses: Collection[str], title: str, text: str) -> None:
        settings = self.settings()
        of_topic = _of_topic(addresses, settings.channels, self._mail_domains)
        everybody = list(dict.fromkeys([*settings.addresses, *of_topic]))
        if not everybody:
            return
        if self.language == "zh":
            title, text = in_chinese(title), in_chinese(text)
        task = asyncio.create_task(self._send(everybody, f"Duetime: {title}", text, settings.mail_server))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send(self, addresses: Sequence[str], title: str, text: str, server: MailServer | None) -> None:
        try:
            await self._sender.send(addresses, title, text, server=server)
        except InvalidSettings as error:
            log.warning("alert_not_sent", extra={"error": error.message, "title": title})


def _of_topic(addresses: Collection[str], channels: Mapping[str, str], mail_domains: Collection[str]) -> Iterator[str]:
    """The channels of a topic and its mail addresses in the allowed domains; its other addresses are never used."""
    for address in addresses:
        if is_mail(address) and is_mail_in(address, mail_domains):
            yield address
        elif address in channels:
            yield channels[address]
        else:
            log.warning(
                "alert_not_sent",
                extra={
                    "address": mask_address(address),
                    "error": "neither a channel nor a mail address in alert_mail_domains",
                },
            )


class DeploymentLock:
    """A file lock that one process of a deployment on this machine holds, and is their leader. When that
    process ends, another one gets the lock.
    """

    def __init__(self, deployment: str) -> None:
        self._name = hashlib.sha256(deployment.encode()).hexdigest()[:16]
        self._file: int | None = None

    def is_leader(self) -> bool:
        if self._file is None:
            import fcntl  # noqa: PLC0415 - Windows has none, and imports this module

            try:
                file = os.open(_private_folder() / f"{self._name}.leader", os.O_RDWR | os.O_CREAT, 0o600)
            except (OSError, RuntimeError) as error:
                log.warning("alert_lock_failed", extra={"error": str(error)})
                return True  # an alert from every process is better than none
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(file)
                return False
            self._file = file
        return True

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _private_folder() -> Path:
    """Makes a folder that only this user can open: in a shared one, another user could hold the lock and so silence
    all alerts. Raises OSError if that is not possible, RuntimeError if this user has no home.
    """
    # systemd names the unit's folders, separated by colons.
    runtime = os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0] or os.environ.get("XDG_RUNTIME_DIR")
    folder = (Path(runtime) if runtime else Path.home() / ".cache") / "duetime"
    folder.mkdir(0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    return folder


def _lasting(firing: Firing) -> str:
    minutes, seconds = divmod(int(time.time() - firing.since), 60)
    return f"Since {time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime(firing.since))}, {minutes} min {seconds} s."
