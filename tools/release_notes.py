"""Prints the section of CHANGELOG.md for a version: `python tools/release_notes.py 0.1.0`."""

import re
import sys
from pathlib import Path

CHANGELOG = Path(__file__).resolve().parent.parent / "CHANGELOG.md"


def notes(version: str) -> str:
    found = re.search(
        rf"^## {re.escape(version)}\b[^\n]*\n(.*?)(?=^## |\Z)", CHANGELOG.read_text(), re.MULTILINE | re.DOTALL
    )
    if not found:
        sys.exit(f"CHANGELOG.md must have a section for {version}")
    return found[1].strip() + "\n"


if __name__ == "__main__":
    sys.stdout.write(notes(sys.argv[1]))
