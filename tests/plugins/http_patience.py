"""A client in a test waits a minute for an answer. httpx gives up after five seconds, which a busy machine may take.

The SDK says for each call how long it waits, so this changes nothing for it.
"""

from httpx._config import DEFAULT_TIMEOUT_CONFIG

for phase in ("connect", "read", "write", "pool"):
    setattr(DEFAULT_TIMEOUT_CONFIG, phase, 60.0)
