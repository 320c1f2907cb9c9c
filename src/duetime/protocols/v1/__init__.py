"""The native API: Duetime's own HTTP protocol under /v1, in JSON.

`V1App` is an ASGI application. `routes.py` has every endpoint on one screen; docs/protocol.md says the same to
people, /v1/openapi.json to programs.
"""

from duetime.protocols.v1.app import V1App

__all__ = ["V1App"]
