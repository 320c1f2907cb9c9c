"""The lmstfy door: lmstfy's HTTP API, reproduced exactly, so that its clients work against Duetime unchanged.

`LmstfyDoor` serves the API listener, `LmstfyAdmin` the admin listener; both are ASGI applications and
share `LmstfyParts`.
What differs from lmstfy, and why, stands in docs/lmstfy.md.
"""

from duetime.doors.lmstfy.admin import LmstfyAdmin
from duetime.doors.lmstfy.door import LmstfyDoor
from duetime.doors.lmstfy.options import LmstfyOptions, LmstfyParts
from duetime.doors.lmstfy.params import Defaults

__all__ = ["Defaults", "LmstfyAdmin", "LmstfyDoor", "LmstfyOptions", "LmstfyParts"]
