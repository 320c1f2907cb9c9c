"""The two addresses that need no token: the OpenAPI document, and the same document as a page for people.

The page is drawn here, once, and needs nothing from any other host.
"""

import functools
import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

import msgspec

from duetime.doors.v1 import openapi
from duetime.doors.v1.request import Headers, Reply

PATHS: Mapping[str, str] = {
    "/v1/openapi.json": "this API as an OpenAPI 3.1 document",
    "/v1/docs": "the same as a page",
}

HTML_HEADERS: Headers = [
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'"),
    (b"x-content-type-options", b"nosniff"),
]

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); }
code, pre { font: 14px/1.45 ui-monospace, monospace; }
pre { background: var(--soft); padding: .7rem 1rem; overflow-x: auto; border-radius: 6px; }
details { border: 1px solid var(--line); border-radius: 6px; margin: .6rem 0; padding: .4rem .8rem; }
summary { cursor: pointer; }
summary b { display: inline-block; min-width: 4.5rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem; border-bottom: 1px solid var(--line); }
"""


@functools.cache
def pages() -> Mapping[str, Reply]:
    document = openapi.build()
    page = "".join(_page(document)).encode()
    return {
        "/v1/openapi.json": Reply(200, content=msgspec.json.encode(document)),
        "/v1/docs": Reply(200, headers=HTML_HEADERS, content=page, content_type=b"text/html; charset=utf-8"),
    }


def _page(document: openapi.Document) -> Iterator[str]:
    info = document["info"]
    title = f"{info['title']} {info['version']}: the native API"
    yield f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<style>{STYLE}</style></head><body><h1>{escape(title)}</h1><p>{escape(info['summary'])}</p>"
    yield '<p>The same for programs: <a href="openapi.json">openapi.json</a> (OpenAPI 3.1).</p>'
    for tag in document["tags"]:
        yield f"<h2>{escape(tag['name'].capitalize())}</h2><p>{escape(tag['description'].capitalize())}.</p>"
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                if tag["name"] in operation["tags"]:
                    yield from _operation(method, path, operation, document["components"]["responses"])
    yield "<h2>Messages</h2>"
    for name, schema in document["components"]["schemas"].items():
        yield f'<details id="{escape(name)}"><summary><code>{escape(name)}</code> '
        yield f"{escape(schema.get('description', ''))}</summary>{_code(schema)}</details>"
    yield "</body></html>"


def _operation(
    method: str, path: str, operation: openapi.Document, shared: Mapping[str, openapi.Document]
) -> Iterator[str]:
    yield f'<details id="{escape(operation["operationId"])}"><summary><b>{escape(method.upper())}</b> '
    yield f"<code>{escape(path)}</code> {escape(operation['summary'])}</summary>"
    yield f"<p>{escape(operation['description'])}</p>"
    if operation["parameters"]:
        yield "<table><tr><th>parameter</th><th>in</th><th>what</th></tr>"
        for parameter in operation["parameters"]:
            required = "" if parameter.get("required") else " (optional)"
            yield f"<tr><td><code>{escape(parameter['name'])}</code>{required}</td><td>{escape(parameter['in'])}</td>"
            yield f"<td>{escape(parameter.get('description', ''))}</td></tr>"
        yield "</table>"
    if "requestBody" in operation:
        content = operation["requestBody"]["content"]["application/json"]
        yield f"<h4>Body: {_link(content['schema'])}</h4>{_code(content['example'])}"
    yield "<table><tr><th>status</th><th>what</th></tr>"
    for status, response in operation["responses"].items():
        known = shared[_name(response)] if "$ref" in response else response
        yield f"<tr><td>{escape(status)}</td><td>{escape(known['description'])}"
        if content := known["content"].get("application/json"):
            yield f"<br>{_link(content['schema'])}{_code(content['example'])}"
        yield "</td></tr>"
    yield "</table></details>"


def _link(schema: openapi.Document) -> str:
    name = escape(_name(schema))
    return f'<a href="#{name}"><code>{name}</code></a>'


def _name(reference: openapi.Document) -> str:
    return str(reference["$ref"].rpartition("/")[2])


def _code(value: Any) -> str:
    return f"<pre>{escape(json.dumps(value, indent=2, ensure_ascii=False))}</pre>"
