"""How much memory a process holds."""

import os
import resource
import sys
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")
MB = 1_048_576


def resident_mb(pid: int | None = None) -> float:
    """Resident memory of a process, by default this one; 0 if unknown: it is gone, or there is no /proc to ask."""
    try:
        pages = int(Path(f"/proc/{pid or 'self'}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        if pid is not None or sys.platform == "linux":
            return 0.0
        # Without /proc there is only the highest it ever was, in bytes on macOS.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MB
    return pages * PAGE / MB
