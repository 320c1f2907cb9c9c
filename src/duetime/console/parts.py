"""The services that the console works with; the protocols use the same ones."""

import asyncio
from dataclasses import dataclass

from duetime.alerts.problems import Alerts
from duetime.callbacks.topic_service import TopicService
from duetime.console.live import LiveFigures
from duetime.engine.pools import Pools
from duetime.engine.registry_copy import RegistryCopy
from duetime.metrics.siblings import Siblings
from duetime.model.settings import Settings
from duetime.protocols.logins import Logins
from duetime.protocols.rate_limits import RateLimits
from duetime.protocols.tokens import Tokens


@dataclass(frozen=True)
class ConsoleParts:
    settings: Settings
    pools: Pools
    registry_copy: RegistryCopy
    topics: TopicService
    tokens: Tokens
    limits: RateLimits
    logins: Logins
    alerts: Alerts
    siblings: Siblings
    live: LiveFigures
    draining: asyncio.Event
