"""lmstfy's HTTP API, reproduced exactly, so that its clients work against Duetime unchanged.

`LmstfyApp` serves the API listener, `LmstfyAdmin` the admin listener; both are ASGI applications and
share `LmstfyParts`.
docs/lmstfy.md describes the differences from lmstfy, and the reasons.
"""

from duetime.protocols.lmstfy.admin import LmstfyAdmin
from duetime.protocols.lmstfy.app import LmstfyApp
from duetime.protocols.lmstfy.options import LmstfyParts, make_parts
from duetime.protocols.lmstfy.wire import Defaults

__all__ = ["Defaults", "LmstfyAdmin", "LmstfyApp", "LmstfyParts", "make_parts"]
