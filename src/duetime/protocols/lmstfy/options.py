"""The settings of the lmstfy listeners, and the objects that they use."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from msgspec import Struct, field

from duetime.engine.pools import Pools
from duetime.engine.registry_copy import RegistryCopy
from duetime.metrics.scraper import Scraper
from duetime.model.errors import InvalidSettings
from duetime.model.job import MAX_BODY
from duetime.model.settings import Settings, is_loopback
from duetime.protocols.access_log import AccessLog
from duetime.protocols.lmstfy.metrics import LmstfyLevels, Metrics
from duetime.protocols.lmstfy.wire import MAX_U16, MAX_U32, Defaults
from duetime.protocols.logins import Logins
from duetime.protocols.rate_limits import RateLimits
from duetime.protocols.tokens import Tokens
from duetime.stores.registry import Registry


class LmstfyOptions(Struct, frozen=True):
    """`accounts` are the users of the admin listener with the hashes of their passwords; without any it asks for none.

    `public_sizes`: /size and /deadletter/size need no token. `protect_admin`: every admin route asks for an account,
    also those that lmstfy leaves open. `admin_is_local`: the admin listener is for programs of this machine, so these
    routes ask for an account also where a web page of elsewhere may have sent the request.
    """

    defaults: Defaults = Defaults()
    max_body: int = MAX_BODY
    public_sizes: bool = True
    accounts: Mapping[str, str] = field(default_factory=dict[str, str])
    protect_admin: bool = False
    admin_is_local: bool = True
    access_log: bool = False


@dataclass(frozen=True)
class LmstfyParts:
    """The two listeners of one process share these."""

    pools: Pools
    tokens: Tokens
    limits: RateLimits
    logins: Logins
    access_log: AccessLog
    metrics: Metrics
    scraper: Scraper
    options: LmstfyOptions
    registry_copy: RegistryCopy

    @classmethod
    def make(
        cls, pools: Pools, registry_copy: RegistryCopy, tokens: Tokens, options: LmstfyOptions, scraper: Scraper
    ) -> "LmstfyParts":
        def registry() -> Registry:
            return pools.registry

        access_log = AccessLog(registry_copy, registry, default=options.access_log)
        limits = RateLimits(registry_copy, registry)
        LmstfyLevels(scraper.levels)
        return cls(
            pools,
            tokens,
            limits,
            Logins(limits, options.accounts),
            access_log,
            Metrics(scraper.meters),
            scraper,
            options,
            registry_copy,
        )


def make_parts(settings: Settings, pools: Pools, registry_copy: RegistryCopy, scraper: Scraper) -> LmstfyParts:
    """Raises InvalidSettings for defaults that no request could ask for."""
    options = LmstfyOptions(
        defaults=_defaults(settings),
        max_body=settings.max_body,
        public_sizes=settings.lmstfy_public_sizes,
        accounts=settings.accounts,
        protect_admin=settings.admin_protect_all,
        admin_is_local=is_loopback(settings.admin_host),
        access_log=settings.access_log,
    )
    tokens = Tokens(registry_copy, lambda: pools.registry, pools, dev=settings.dev)
    return LmstfyParts.make(pools, registry_copy, tokens, options, scraper)


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
