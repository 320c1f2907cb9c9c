"""A page in headless Chromium: what it said on its console, and what became of it.

The pages forbid themselves every request by their Content-Security-Policy, and Chromium says on the console when one
is refused; so a silent console means that nothing was asked for.
"""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.plugins.ci import missing_service
from tests.plugins.processes import guard, release

CONSOLE = re.compile(r":(?:INFO|WARNING|ERROR):CONSOLE[:(]\d+\)?\] (.*)")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--enable-logging=stderr",
    "--virtual-time-budget=4000",
    "--window-size=1400,2400",
)
DEADLINE_S = 150


@dataclass(frozen=True)
class Seen:
    dom: str
    console: list[str]


def look_at(page: Path, profile: Path) -> Seen:
    """Load the page, let it draw, and read its document."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        missing_service("chromium is not installed")
    process = subprocess.Popen(
        [program, *FLAGS, f"--user-data-dir={profile}", "--dump-dom", page.as_uri()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    guard(process.pid)
    try:
        out, err = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
        process.wait()
        release(process.pid)
    return Seen(out, CONSOLE.findall(err))
