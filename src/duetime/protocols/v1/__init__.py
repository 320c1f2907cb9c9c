"""The native door: Duetime's own HTTP API under /v1, in JSON.

`NativeDoor` is an ASGI application. `routes.py` has every endpoint on one screen; docs/protocol.md says the same to
people, /v1/openapi.json to programs.
"""

from duetime.protocols.v1.door import NativeDoor

__all__ = ["NativeDoor"]
