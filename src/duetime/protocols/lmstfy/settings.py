"""Makes what the two lmstfy listeners work with, from the settings of the server."""

from datetime import timedelta

from duetime.engine.pools import Pools
from duetime.engine.registry_copy import RegistryCopy
from duetime.metrics.scraper import Scraper
from duetime.model.errors import InvalidSettings
from duetime.model.settings import Settings, is_loopback
from duetime.protocols.lmstfy.options import LmstfyOptions, LmstfyParts
from duetime.protocols.lmstfy.params import MAX_U16, MAX_U32, Defaults
from duetime.protocols.tokens import Tokens


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
        raise InvalidSettings(f"lmstfy_tries lies between 1 and {MAX_U16}: {settings.lmstfy_tries}")
    ttl, delay = _seconds(settings, "lmstfy_ttl"), _seconds(settings, "lmstfy_delay")
    if 0 < ttl < delay:
        raise InvalidSettings("lmstfy_ttl is shorter than lmstfy_delay")
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
        raise InvalidSettings(f"{name} is a number of whole seconds up to {MAX_U32}: {value}")
    return seconds
