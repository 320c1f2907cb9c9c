"""The OpenAPI 3.1 document, generated from the table of routes and the types that validate.

Nothing is written twice: schemas are msgspec's of the messages, parameters those of the query types, errors the classes
of the tree, examples are messages themselves. /v1/openapi.json serves the document, and /v1/docs the same as a page for
people, from docs.html, which needs nothing from any other host.
"""

import functools
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import msgspec

from duetime import __version__
from duetime.model.errors import (
    BodyTooLarge,
    DuetimeError,
    Forbidden,
    InvalidName,
    InvalidRequest,
    Overloaded,
    PoolNotFound,
    StoreDamaged,
    StoreUnavailable,
    TooManyRequests,
    Unauthorized,
)
from duetime.model.names import MAX_ID
from duetime.protocols.tokens import Access
from duetime.protocols.v1.examples import EXAMPLES, Example
from duetime.protocols.v1.request import MAX_KEY, Headers, Response
from duetime.protocols.v1.routes import ROUTES, Errors, Route
from duetime.wire.convert import error_out
from duetime.wire.messages import NAME_PATTERN, ErrorOut

Document = dict[str, Any]

REF = "#/components/schemas/{name}"
ANY_ERRORS: Errors = (
    InvalidRequest,
    InvalidName,
    Unauthorized,
    Forbidden,
    PoolNotFound,
    TooManyRequests,
    DuetimeError,
    StoreDamaged,
    Overloaded,
    StoreUnavailable,
)
"""The errors that any request may get."""

PATH_PARAMETERS: Mapping[str, Document] = {
    "namespace": {
        "description": "the namespace",
        "schema": {"type": "string", "pattern": NAME_PATTERN},
        "example": "shop",
    },
    "queue": {
        "description": "the queue",
        "schema": {"type": "string", "pattern": NAME_PATTERN},
        "example": "mail",
    },
    "topic": {
        "description": "the topic, which is the name of its queue",
        "schema": {"type": "string", "pattern": NAME_PATTERN},
        "example": "mail",
    },
    "schedule": {
        "description": "the name of the schedule, percent-encoded",
        "schema": {"type": "string", "minLength": 1, "maxLength": MAX_ID},
        "example": "nightly-report",
    },
    "id": {
        "description": "the job's id, percent-encoded (a slash is %2F)",
        "schema": {"type": "string", "minLength": 1, "maxLength": MAX_ID},
        "example": "welcome-17",
    },
}

ONE_BODY: Document = {"not": {"required": ["body", "body_b64"]}}
ONE_TIME: Document = {"oneOf": [{"required": ["delay"]}, {"required": ["due_at"]}]}
NO_SECOND: Document = {"allOf": [ONE_BODY, {"not": {"required": ["delay", "due_at"]}}]}
BETWEEN_FIELDS: Mapping[str, Document] = {
    "JobIn": NO_SECOND,
    "PushIn": NO_SECOND,
    "RescheduleIn": ONE_TIME,
    "WhenIn": ONE_TIME,
    "AckIn": {"oneOf": [{"required": ["lease"]}, {"required": ["leases"]}]},
    "JobScheduleIn": {
        "oneOf": [{"required": ["every"]}, {"required": ["cron"]}],
        "allOf": [ONE_BODY, *({"not": {"required": ["task", body]}} for body in ("body", "body_b64"))],
        "dependentRequired": {"arguments": ["task"]},
    },
    "AddIn": {"not": {"required": ["due_at", "fix_time"]}},
}
"""Rules between the fields of a message, which a type cannot say."""

TAGS = {
    Access.WRITE: "producers",
    Access.READ: "consumers and readers",
    Access.ADMIN: "administration",
}

REQUEST_ID: Document = {"description": "identifies this request in the server's log", "schema": {"type": "string"}}
REPLAYED: Document = {
    "description": "`true` if an earlier request with this key did the work",
    "schema": {"type": "string", "enum": ["true"]},
}
PROBLEM_HEADERS: Mapping[int, tuple[str, str]] = {
    401: ("WWW-Authenticate", "how to authenticate"),
    429: ("Retry-After", "seconds to wait before trying again, if that helps"),
    503: ("Retry-After", "seconds to wait before trying again"),
}


def build() -> Document:
    types: set[type[msgspec.Struct]] = {kind for route in ROUTES for kind in _types(route)} | {ErrorOut}
    _, components = msgspec.json.schema_components(sorted(types, key=lambda kind: kind.__name__), ref_template=REF)
    paths: Document = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Duetime",
            "version": __version__,
            "summary": "A delayed job queue: push a job now, have it delivered when it is due.",
            "description": "docs/protocol.md explains the states of a job, every reply, and what to do next.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"bearer": []}, {"token": []}],
        "tags": [{"name": name, "description": f"for tokens with the scope {access}"} for access, name in TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": {name: _tidy({**schema, **BETWEEN_FIELDS.get(name, {})}) for name, schema in components.items()},
            "responses": {_problem_name(kinds): _problem(kinds) for route in ROUTES for kinds in _refusals(route)},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "the token: [pool:]token"},
                "token": {"type": "apiKey", "in": "header", "name": "X-Token", "description": "the same token"},
            },
        },
    }


def _types(route: Route) -> Iterable[type[msgspec.Struct]]:
    yield from route.gives.values()
    if route.takes:
        yield route.takes


def _operation(route: Route) -> Document:
    example = EXAMPLES[route.name]
    operation: Document = {
        "operationId": route.name,
        "summary": route.summary,
        "description": f"Required scope: {' and '.join(route.needs)}.",
        "tags": [TAGS[route.needs[0]]],
        "parameters": [*_path_parameters(route), *_query_parameters(route), *_header_parameters(route)],
        "responses": _responses(route, example),
    }
    if route.takes:
        operation["requestBody"] = {
            "required": not route.optional,
            "content": {"application/json": _content(route.takes, example.takes)},
        }
    return operation


def _content(kind: type[msgspec.Struct], example: msgspec.Struct | None) -> Document:
    content: Document = {"schema": {"$ref": REF.format(name=kind.__name__)}}
    if example is not None:
        content["example"] = _plain(example)
    return content


def _plain(message: msgspec.Struct) -> Any:
    return msgspec.json.decode(msgspec.json.encode(message))


# --- parameters


def _path_parameters(route: Route) -> list[Document]:
    names = [part[1:-1] for part in route.path.split("/") if part.startswith("{")]
    return [{"name": name, "in": "path", "required": True, **PATH_PARAMETERS[name]} for name in names]


def _query_parameters(route: Route) -> list[Document]:
    if route.query is None:
        return []
    [_], components = msgspec.json.schema_components([route.query], ref_template=REF)
    schema = components[route.query.__name__]
    return [_query_parameter(name, part, schema, components) for name, part in schema["properties"].items()]


def _query_parameter(name: str, part: Document, schema: Document, components: Mapping[str, Document]) -> Document:
    part = dict(part)
    description = part.pop("description", "")
    if "$ref" in part:
        part = {**components[part.pop("$ref").rpartition("/")[2]], **part}
    parameter: Document = {"name": name, "in": "query", "description": description, "schema": _portable(part)}
    if name in schema["required"]:
        parameter["required"] = True
    return parameter


def _header_parameters(route: Route) -> list[Document]:
    if not route.keyed:
        return []
    return [
        {
            "name": "Idempotency-Key",
            "in": "header",
            "description": "a repeated request with the same key within 24 h returns the first answer",
            "schema": {"type": "string", "minLength": 1, "maxLength": MAX_KEY, "pattern": "^[!-~]([ -~]*[!-~])?$"},
        }
    ]


# --- responses


def _responses(route: Route, example: Example) -> Document:
    responses = {str(status): _success(route, example, status) for status in route.gives}
    for kinds in _refusals(route):
        responses[str(kinds[0].status)] = {"$ref": f"#/components/responses/{_problem_name(kinds)}"}
    return responses


def _success(route: Route, example: Example, status: int) -> Document:
    headers: Document = {"X-Request-ID": REQUEST_ID}
    if route.keyed:
        headers["Idempotent-Replayed"] = REPLAYED
    content = {"application/json": _content(route.gives[status], example.gives)}
    return {"description": example.says[status], "headers": headers, "content": content}


def _refusals(route: Route) -> list[Errors]:
    """The errors of a route, those of one status together."""
    kinds: Errors = (*ANY_ERRORS, *((BodyTooLarge,) if route.takes else ()), *route.refuses)
    statuses = sorted({kind.status for kind in kinds})
    return [tuple(kind for kind in dict.fromkeys(kinds) if kind.status == status) for status in statuses]


def _problem_name(kinds: Errors) -> str:
    return f"{kinds[0].status}_{'_or_'.join(kind.code for kind in kinds)}"


def _problem(kinds: Errors) -> Document:
    status = kinds[0].status
    headers: Document = {"X-Request-ID": REQUEST_ID}
    if status in PROBLEM_HEADERS:
        name, description = PROBLEM_HEADERS[status]
        headers[name] = {"description": description, "schema": {"type": "string"}}
    narrowed = {"properties": {"code": {"enum": [kind.code for kind in kinds]}, "status": {"const": status}}}
    return {
        "description": "; ".join(f"`{kind.code}`: {_title(kind)}" for kind in kinds),
        "headers": headers,
        "content": {
            "application/problem+json": {
                "schema": {"allOf": [{"$ref": REF.format(name="ErrorOut")}, narrowed]},
                "examples": {kind.code: {"value": _plain(error_out(kind()))} for kind in kinds},
            }
        },
    }


def _title(kind: type[DuetimeError]) -> str:
    return (kind.__doc__ or "").split("\n", 1)[0].rstrip(".")


def _tidy(schema: Document) -> Document:
    """The schema without the line breaks of its docstring."""
    tidy = _portable(schema)
    return {**tidy, "description": " ".join(tidy["description"].split())} if "description" in tidy else tidy


def _portable(schema: Any) -> Any:
    """As generators of clients understand it: whole numbers have 64 bits, and there are no defaults that are objects or
    have one of several types, of which they make code that does not compile. The description says the latter.
    """
    if isinstance(schema, list):
        return [_portable(part) for part in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    part = {name: _portable(value) for name, value in cast("Document", schema).items()}
    if part.get("type") == "integer":
        part["format"] = "int64"
    if "anyOf" in part and "default" in part:
        part["description"] = "; ".join(filter(None, [part.get("description", ""), f"default: {part.pop('default')}"]))
    elif isinstance(part.get("default"), dict):
        del part["default"]
    return part


# --- the two addresses that need no token; each answer is made when it is first asked for

MakePage = Callable[[], Response]

HTML_HEADERS: Headers = [
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'"),
    (b"x-content-type-options", b"nosniff"),
]


@functools.cache
def _openapi_json() -> Response:
    return Response(200, content=msgspec.json.encode(build()))


@functools.cache
def _docs() -> Response:
    # Few processes ever serve this page, and the import of Jinja2 takes longer than the start of the protocol.
    from jinja2 import Environment, PackageLoader  # noqa: PLC0415

    templates = Environment(loader=PackageLoader("duetime.protocols.v1", ""), autoescape=True, trim_blocks=True)
    page = templates.get_template("docs.html").render(document=build(), json_text=_json_text)
    return Response(200, headers=HTML_HEADERS, content=page.encode(), content_type=b"text/html; charset=utf-8")


def _json_text(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


PAGES: Mapping[str, MakePage] = {"/v1/openapi.json": _openapi_json, "/v1/docs": _docs}
