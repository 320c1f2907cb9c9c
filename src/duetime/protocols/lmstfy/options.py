"""The settings of the lmstfy listeners, and the objects that they use."""

from dataclasses import dataclass
from datetime import timedelta

from duetime.engine.pools import Pools
from duetime.engine.registry_copy import RegistryCopy
from duetime.metrics.scraper import Scraper
from duetime.model.errors import InvalidSettings
from duetime.model.settings import Settings
from duetime.protocols.access_log import AccessLog
from duetime.protocols.lmstfy.metrics import LmstfyLevels, Metrics
from duetime.protocols.lmstfy.wire import MAX_U16, MAX_U32, Defaults
from duetime.protocols.logins import Logins
from duetime.protocols.rate_limits import RateLimits
from duetime.protocols.tokens import Tokens
from duetime.stores.registry import Registry


@dataclass(frozen=True)
class LmstfyParts:
    """The two listeners of one process share these."""

    settings: Settings
    defaults: Defaults
    pools: Pools
    tokens: Tokens
    limits: RateLimits
    logins: Logins
    access_log: AccessLog
    metrics: Metrics
    scraper: Scraper
    registry_copy: RegistryCopy


def make_parts(settings: Settings, pools: Pools, registry_copy: RegistryCopy, scraper: Scraper) -> LmstfyParts:
    """Raises InvalidSettings for defaults that no request could ask for."""

    def registry() -> Registry:
        return pools.registry

    limits = RateLimits(registry_copy, registry)
    LmstfyLevels(scraper.levels)
    return LmstfyParts(
        settings,
        _defaults(settings),
        pools,
        Tokens(registry_copy, registry, pools, dev=settings.dev),
        limits,
        Logins(limits, settings.accounts),
        AccessLog(registry_copy, registry, default=settings.access_log),
        Metrics(scraper.meters),
        scraper,
        registry_copy,
    )


def _defaults(settings: Settings) -> Defaults:
    if not 1 <= settings.lmstfy_tries <= MAX_U16:
        raise InvalidSettings(f"lmstfy_tries must be 1 to {MAX_U16}, got {settings.lmstfy_tries}")
    ttl, delay = _seconds(settings, "lmstfy_ttl"), _seconds(settings, "lmstfy_delay")
    if 0 < ttl < delay:
        raise InvalidSettings("lmstfy_ttl must not be shorter than lmstfy_delay")
    return Defaults(
        delay=delay,
        ttl=ttl,
        tries=settings.lmstfy_tries,
        ttr=_seconds(settings, "lmstfy_ttr"),
        timeout=_seconds(settings, "lmstfy_timeout"),
    )


def _seconds(settings: Settings, name: str) -> int:
    """lmstfy counts in whole seconds."""
    value: timedelta = getattr(settings, name)
    seconds, rest = divmod(value, timedelta(seconds=1))
    if rest or seconds > MAX_U32:
        raise InvalidSettings(f"{name} must be a number of whole seconds up to {MAX_U32}, got {value}")
    return seconds
