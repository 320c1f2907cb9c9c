"""Creates the parts of a server process that handle topics and callbacks, from the settings.

Protocols that accept jobs for topics call `service.jobs`; pages that administer topics call `service`.
"""

from dataclasses import dataclass
from datetime import tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from duetime.callbacks.courier import CourierOptions
from duetime.callbacks.daily_logs import DailyLogs
from duetime.callbacks.targets import AllowedTargets, read_networks
from duetime.callbacks.topic_registry import TopicRegistry
from duetime.callbacks.topic_service import TopicService
from duetime.engine.pools import Pools
from duetime.engine.registry_copy import RegistryCopy
from duetime.model.errors import InvalidSettings
from duetime.model.names import is_host
from duetime.model.settings import Settings

LOOPBACK = "127.0.0.0/8, ::1"


@dataclass(frozen=True)
class Callbacks:
    """What other parts of a server process need for callbacks."""

    service: TopicService
    logs: DailyLogs
    options: CourierOptions


def make_callbacks(settings: Settings, pools: Pools, registry_copy: RegistryCopy) -> Callbacks:
    """Raises InvalidSettings."""
    # With --dev, receivers usually run on the same machine, and only local clients can create topics.
    allowed = read_networks(f"{settings.callback_allow},{LOOPBACK}" if settings.dev else settings.callback_allow)
    zone = read_zone(settings.topic_timezone)
    service = TopicService(
        lambda: pools.registry,
        pools.engine,
        topics=TopicRegistry(lambda: pools.registry, registry_copy, mail_domains=mail_domains(settings)),
        targets=AllowedTargets(allowed),
        zone=zone,
    )
    options = CourierOptions(
        in_flight=settings.callback_in_flight,
        per_host=settings.callback_per_host,
        lease_ms=round(settings.callback_lease.total_seconds() * 1000),
        allowed=allowed,
        zone=zone,
        grace_s=settings.drain_timeout.total_seconds(),
    )
    return Callbacks(service, DailyLogs(settings.topic_log, zone), options)


def mail_domains(settings: Settings) -> list[str]:
    """Raises InvalidSettings."""
    domains = settings.alert_mail_domains.lower().replace(",", " ").split()
    for domain in domains:
        if not is_host(domain):
            raise InvalidSettings(f"alert_mail_domains must be domains like example.com, got {domain!r}")
    return domains


def read_zone(name: str) -> tzinfo | None:
    if not name:
        return None
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        raise InvalidSettings(f"topic_timezone must be a time zone like Asia/Shanghai or UTC, got {name!r}") from None
