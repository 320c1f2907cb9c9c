"""The lmstfy door: its HTTP API to the letter, so that its clients work against Duetime unchanged.

`LmstfyDoor` serves the API listener, `LmstfyAdmin` the admin listener; both are ASGI applications that share `Parts`.
What differs from lmstfy, and why, stands in docs/lmstfy.md.
"""

from duetime.api.lmstfy.admin import LmstfyAdmin
from duetime.api.lmstfy.door import LmstfyDoor
from duetime.api.lmstfy.options import Options, Parts
from duetime.api.lmstfy.params import Defaults

__all__ = ["Defaults", "LmstfyAdmin", "LmstfyDoor", "Options", "Parts"]
