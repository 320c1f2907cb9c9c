"""The name of a process in `ps -e`, `top` and `pgrep`, where every Python program would otherwise be `python`."""

import ctypes
import sys

PR_SET_NAME = 15


def set_process_title(name: str) -> None:
    """At most 15 characters are shown. Does nothing where the system has no such call."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode(), 0, 0, 0)
