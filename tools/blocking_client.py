"""Generates the blocking client from the async one.

    .venv/bin/python tools/blocking_client.py            # write client.py, collections.py, schedules.py and topics.py
    .venv/bin/python tools/blocking_client.py --check    # exit with 1 if they are not current

Only names and keywords change: `async` and `await` go, and each name of NAMES becomes its blocking counterpart. What
really differs between the two is written by hand in the modules that both import. docs/decisions/038 says why.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLIENT = ROOT / "src" / "duetime" / "client"
FILES = {
    "async_client.py": "client.py",
    "async_collections.py": "collections.py",
    "async_schedules.py": "schedules.py",
    "async_topics.py": "topics.py",
}
NAMES = {
    "AsyncBlockingQueue": "BlockingQueue",
    "AsyncClient": "Client",
    "AsyncCollection": "Collection",
    "AsyncDeadLetters": "DeadLetters",
    "AsyncDelayedQueue": "DelayedQueue",
    "AsyncIterator": "Iterator",
    "AsyncLeasedJob": "LeasedJob",
    "AsyncListeners": "Listeners",
    "AsyncOnly": "BlockingOnly",
    "AsyncQueue": "BlockingQueueBase",
    "AsyncQueueClient": "QueueClient",
    "AsyncSchedules": "Schedules",
    "AsyncTaken": "Taken",
    "AsyncTopics": "Topics",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "async_client": "client",
    "async_schedules": "schedules",
    "open_async": "open_sync",
    "asyncio": "blocking code",
}
FORMAT = ("ruff", "format", "-", "--quiet", "--stdin-filename")
SORT = ("ruff", "check", "-", "--quiet", "--select", "I", "--fix-only", "--stdin-filename")


def blocking(source: str, name: str) -> str:
    """The blocking counterpart of an async module of this name."""
    text = re.sub(r"(?<!\w)\(await (self\.\w+\(\w*\))\)", r"\1", source)
    text = text.replace("from asyncio import sleep", "from time import sleep")
    text = re.sub(r"\b(?:async|await) (?=def |for |with await |await |\w+[.(])", "", text)
    text = re.sub(r"\b\w+\b", lambda word: NAMES.get(word[0], word[0]), text)
    if found := re.search(r"^[^\"#]*\b(?:async|await|Async\w+)\b.*", text, re.MULTILINE):
        raise ValueError(f"{name}: no rule for {found[0].strip()!r}")
    note = f"# Generated from {name} by tools/blocking_client.py: change that file and run the tool again.\n"
    for command in (SORT, FORMAT):
        path = str(CLIENT / FILES[name])
        program = [str(Path(sys.executable).with_name(command[0])), *command[1:], path]
        text = subprocess.run(program, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return note + text


def main() -> int:
    stale = 0
    for name, target in FILES.items():
        text, path = blocking((CLIENT / name).read_text(), name), CLIENT / target
        if path.exists() and path.read_text() == text:
            continue
        stale += 1
        if "--check" in sys.argv:
            sys.stderr.write(f"{path.relative_to(ROOT)} is not current: run tools/blocking_client.py\n")
        else:
            path.write_text(text)
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
