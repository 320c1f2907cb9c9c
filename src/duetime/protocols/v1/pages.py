"""The two addresses that need no token: the OpenAPI document, and the same document as a page for people.

Each is made when it is first asked for. The page comes from docs.html and needs nothing from any other host.
"""

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from duetime.protocols.v1 import openapi
from duetime.protocols.v1.request import Headers, Reply

MakePage = Callable[[], Reply]

HTML_HEADERS: Headers = [
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'"),
    (b"x-content-type-options", b"nosniff"),
]


@functools.cache
def _openapi_json() -> Reply:
    return Reply(200, content=msgspec.json.encode(openapi.build()))


@functools.cache
def _docs() -> Reply:
    # Few processes are ever asked for this page, and importing Jinja2 takes longer than starting the protocol.
    from jinja2 import Environment, PackageLoader  # noqa: PLC0415

    templates = Environment(loader=PackageLoader("duetime.protocols.v1", ""), autoescape=True, trim_blocks=True)
    page = templates.get_template("docs.html").render(document=openapi.build(), json_text=_json_text)
    return Reply(200, headers=HTML_HEADERS, content=page.encode(), content_type=b"text/html; charset=utf-8")


def _json_text(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


PAGES: Mapping[str, MakePage] = {"/v1/openapi.json": _openapi_json, "/v1/docs": _docs}
