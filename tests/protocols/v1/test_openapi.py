"""The document, the page and docs/protocol.md say what the application does."""

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest

from duetime.model.errors import BY_CODE, BodyTooLarge, MethodNotAllowed, NotFound
from duetime.protocols.v1 import openapi
from duetime.protocols.v1.openapi import PAGES
from duetime.protocols.v1.routes import ROUTES, Route
from duetime.stores.open import open_store
from tests.plugins.ci import missing_service
from tests.protocols.v1.server import serve

PROTOCOL = Path(__file__).parents[3] / "docs" / "protocol.md"

Json = dict[str, Any]


@pytest.fixture(scope="module")
def document() -> Json:
    return openapi.build()


@pytest.fixture(scope="module")
def protocol() -> str:
    return PROTOCOL.read_text()


def operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


# --- the document


def test_every_route_is_in_the_document(document: Json) -> None:
    described = {(method, path): operation["operationId"] for method, path, operation in operations(document)}

    assert described == {(route.method, route.path): route.name for route in ROUTES}


def test_every_reference_leads_somewhere(document: Json) -> None:
    def references(part: Any) -> Iterator[str]:
        if isinstance(part, dict):
            for name, value in part.items():
                if name == "$ref":
                    yield value
                else:
                    yield from references(value)
        elif isinstance(part, list):
            for value in part:
                yield from references(value)

    found = set(references(document))
    assert found
    for reference in found:
        target: Any = document
        for step in reference.removeprefix("#/").split("/"):
            target = target[step]


def test_every_schema_is_one(document: Json) -> None:
    for schema in document["components"]["schemas"].values():
        jsonschema_rs.meta.validate(schema)


def test_every_example_is_valid(document: Json) -> None:
    shared = document["components"]["responses"]
    checked = 0
    for _, _, operation in operations(document):
        replies = [shared[_name(reply)] if "$ref" in reply else reply for reply in operation["responses"].values()]
        for part in (operation.get("requestBody", {"content": {}}), *replies):
            for content in part["content"].values():
                schema = {**content["schema"], "components": document["components"]}
                examples = content.get("examples") or {"only": {"value": content["example"]}}
                for example in examples.values():
                    jsonschema_rs.validate(schema, example["value"])
                    checked += 1
    assert checked > 2 * len(ROUTES)


def _name(reference: Json) -> str:
    return str(reference["$ref"].rpartition("/")[2])


async def test_the_document_is_served(http: httpx.AsyncClient, document: Json) -> None:
    reply = await http.get("/v1/openapi.json")

    assert reply.headers["content-type"] == "application/json"
    assert reply.json() == document


# --- the page


async def test_the_page_shows_every_endpoint_and_needs_nobody(http: httpx.AsyncClient, document: Json) -> None:
    reply = await http.get("/v1/docs")

    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert reply.headers["content-security-policy"].startswith("default-src 'none'")
    for _, path, operation in operations(document):
        assert f'id="{operation["operationId"]}"' in reply.text
        assert path in reply.text
    shown = reply.text.replace("https://shop.example.com/", "")  # the callback of an example, as text
    assert not re.findall(r"<script|https?://|src=|@import|url\(", shown)
    assert set(re.findall(r'href="([^"#]+)"', reply.text)) == {"openapi.json"}
    assert set(re.findall(r'href="#([^"]+)"', reply.text)) <= set(re.findall(r'id="([^"]+)"', reply.text))


def parts(value: Any) -> Iterator[Json]:
    if isinstance(value, dict):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
        yield from parts(part)


def test_generators_of_clients_understand_the_schemas(document: Json) -> None:
    """What they make of the rest does not compile, loses large numbers, or takes bodies for text."""
    schemas = list(parts(document["components"]["schemas"])) + list(parts(document["paths"]))
    assert [one for one in schemas if one.get("type") == "integer" and one.get("format") != "int64"] == []
    assert [one for one in schemas if isinstance(one.get("type"), list)] == []
    assert [one for one in schemas if "default" in one and ("anyOf" in one or isinstance(one["default"], dict))] == []


# --- docs/protocol.md


def rows(text: str) -> list[list[str]]:
    """The rows of the first table in the text, without its head."""
    table = text[text.index("\n|") + 1 :].split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in table]


def section(text: str, title: str) -> str:
    found = re.search(rf"(?m)^#+ {re.escape(title)}$(.*?)(?=^#+ |\Z)", text, re.DOTALL | re.MULTILINE)
    assert found, f"no section {title!r}"
    return found[1]


def test_the_table_of_endpoints_is_the_table_of_routes(protocol: str) -> None:
    def row(route: Route) -> list[str]:
        taken = " + ".join(filter(None, [route.takes and route.takes.__name__, route.query and "query"]))
        given = ", ".join(f"{status} {kind.__name__}" for status, kind in route.gives.items())
        needs = " + ".join(route.needs)
        return [f"`{route.method} {route.path}`", f"[{route.name}](#{route.name})", needs, taken, given]

    assert rows(section(protocol, "Endpoints")) == [row(route) for route in ROUTES]


def test_the_addresses_without_a_token_are_told(protocol: str) -> None:
    for path in PAGES:
        assert f"`GET {path}`" in protocol


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_every_endpoint_lists_every_reply_of_its_own(protocol: str, route: Route) -> None:
    listed = [row[0] for row in rows(section(protocol, route.name))]

    expected = [str(status) for status in route.gives] + [f"{kind.status} `{kind.code}`" for kind in route.refuses]
    assert sorted(listed) == sorted(expected)


def test_replies_to_any_request_are_listed_once(protocol: str) -> None:
    listed = [row[0] for row in rows(section(protocol, "Replies that any request may get"))]

    expected = {*openapi.ANY_ERRORS, BodyTooLarge, NotFound, MethodNotAllowed}
    assert sorted(listed) == sorted(f"{kind.status} `{kind.code}`" for kind in expected)


def test_every_reply_says_what_to_do_next(protocol: str) -> None:
    titles = ["Replies that any request may get", *(route.name for route in ROUTES)]

    for title in titles:
        for row in rows(section(protocol, title)):
            assert len(row) == 3
            assert all(row), f"{title}: {row}"


def test_no_code_is_invented(protocol: str) -> None:
    assert {code for _, code in re.findall(r"(\d{3}) `(\w+)`", protocol)} <= set(BY_CODE)


async def test_the_first_job_works(protocol: str, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        missing_service("curl is not installed")
    [script] = re.findall(r"```sh\n(.*?)```", section(protocol, "A first job"), re.DOTALL)

    store = await open_store("memory:")
    async with serve(store) as served:
        done = await asyncio.to_thread(
            subprocess.run,
            ["sh", "-eu", "-c", script],
            cwd=tmp_path,
            env={**os.environ, "URL": served.url},
            capture_output=True,
            text=True,
            timeout=90,
        )

    assert done.returncode == 0, done.stderr
    assert '"event":"acked"' in done.stdout
