"""`duetime init`: write the skeleton of a project, with a task, settings and a README of three commands."""

from pathlib import Path
from typing import Annotated

from duetime.cli.options import AnswerForm, argument
from duetime.model.errors import InvalidRequest

JOBS = '''"""The tasks of this project. Workers run them: `duetime work jobs:app`."""

import os
import sys

import duetime

# A server, or a store such as sqlite:jobs.db or redis://localhost, which needs no server.
app = duetime.App(os.environ.get("DUETIME_URL", "http://127.0.0.1:7777"))


@app.task(queue="mail", tries=3, backoff="10s,1m", timeout="30s")
def send(to: str) -> None:
    print(f"hello {to}", flush=True)


if __name__ == "__main__":
    handle = send.later(sys.argv[1] if len(sys.argv) > 1 else "5s", "ann")
    print(f"pushed {handle.id}: a worker prints hello ann when it is due")
'''

SETTINGS = """# Settings of `duetime serve` in this folder. `duetime config` prints all of them and their sources.
store = "sqlite:duetime-data/jobs.db"
journal = "duetime-data/journal"
"""

README = """# {name}

Run these three commands in this folder, each in its own terminal:

    duetime serve --dev         # the server; its console is at http://127.0.0.1:7778/console/
    duetime work jobs:app       # a worker
    python jobs.py              # push a job that is due in five seconds

`jobs.py` has the tasks, `duetime.toml` the settings of the server. Jobs are kept in `duetime-data/`.
Without a server, set `DUETIME_URL=sqlite:jobs.db` for the worker and the program. `--dev` gives everybody on this
machine access; for production, see docs/production.md of Duetime.
"""

FILES = {"jobs.py": JOBS, "duetime.toml": SETTINGS, "README.md": README, ".gitignore": "duetime-data/\n*.db*\n"}


def init(
    form: AnswerForm,
    folder: Annotated[Path, argument("[FOLDER]", "Where to write it; created if missing.")] = Path(),
) -> None:
    """Write the skeleton of a project: a task, settings, and a README of three commands.

    It never overwrites files: if one of the four files exists, it writes nothing.

    Examples:
        duetime init my-shop
        cd my-shop && duetime serve --dev
    """
    if taken := [name for name in FILES if (folder / name).exists()]:
        raise InvalidRequest(f"{folder} must not contain {', '.join(taken)}; choose another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in FILES.items():
            (folder / name).write_text(text.replace("{name}", folder.resolve().name), encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(f"cannot write to {folder}: {error.strerror}") from None
    lines = [f"wrote {folder / name}" for name in FILES]
    form.answer.show(
        {"folder": str(folder), "files": list(FILES)}, "\n".join([*lines, f"continue with {folder / 'README.md'}"])
    )
