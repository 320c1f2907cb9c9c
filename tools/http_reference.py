"""The examples in docs/protocol.md, written from those of the OpenAPI document.

`python tools/http_reference.py` renews the example of every endpoint, which is in front of its table of replies, and
`make format` runs it. With --check it only says whether they differ.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from duetime.protocols.v1.openapi import build

PAGE = Path("docs/protocol.md")
LINE = 100


def renew_page(page: str) -> str:
    document = build()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            page = _renew_section(page, operation["operationId"], _example(method, path, operation))
    return page


def _renew_section(page: str, name: str, example: str) -> str:
    section = re.compile(rf"(?ms)^(### {name}\n\n.*?)(?:```http\n.*?)?(?=^\| reply \|)")
    return section.sub(lambda found: f"{found[1]}{example}\n\n", page, count=1)


def _example(method: str, path: str, operation: dict[str, Any]) -> str:
    query: list[str] = []
    for parameter in operation["parameters"]:
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", parameter["example"])
        elif parameter.get("required"):
            query.append(f"{parameter['name']}={parameter['schema']['enum'][0]}")
    request = [f"{method.upper()} {path}{'?' + '&'.join(query) if query else ''} HTTP/1.1"]
    if body := operation.get("requestBody"):
        request += ["Content-Type: application/json", "", _json(body["content"]["application/json"]["example"])]
    success = next(iter(operation["responses"].values()))
    answer = _json(success["content"]["application/json"]["example"])
    return "\n".join(["```http", *request, "```", "", "```json", answer, "```"])


def _json(value: Any, indent: int = 1) -> str:
    """On one line if it fits, otherwise as many items on a line as fit."""
    line = json.dumps(value, ensure_ascii=False)
    if len(line) + indent <= LINE or not isinstance(value, dict | list):
        return line
    if isinstance(value, dict):
        items = [f"{json.dumps(name)}: {_json(item, indent + 1)}" for name, item in value.items()]
    else:
        items = [_json(item, indent + 1) for item in value]
    lines = [items[0]]
    for item in items[1:]:
        if len(lines[-1].rpartition("\n")[2]) + len(item.partition("\n")[0]) + indent + 3 <= LINE:
            lines[-1] += f", {item}"
        else:
            lines.append(item)
    return line[0] + f",\n{' ' * indent}".join(lines) + line[-1]


def main() -> None:
    page = PAGE.read_text()
    renewed = renew_page(page)
    if "--check" not in sys.argv:
        PAGE.write_text(renewed)
    elif page != renewed:
        sys.exit(f"{PAGE} is out of date: run `make format`")


if __name__ == "__main__":
    main()
