"""Finds the route of a method and a raw path.

The raw path is split before it is decoded, so a job id may hold a slash (%2F). Literal parts win over names.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from urllib.parse import unquote_to_bytes

from duetime.model.errors import InvalidRequest, MethodNotAllowed, NotFound

T = TypeVar("T")


@dataclass
class RouteNode(Generic[T]):
    literals: dict[bytes, "RouteNode[T]"] = field(default_factory=dict[bytes, "RouteNode[T]"])
    name: "RouteNode[T] | None" = None
    methods: dict[str, T] = field(default_factory=dict[str, T])


class Router(Generic[T]):
    """A tree of path segments; a lookup costs one step per segment, however many routes there are."""

    def __init__(self) -> None:
        self._root: RouteNode[T] = RouteNode()

    def add(self, method: str, path: str, route: T) -> None:
        node = self._root
        for part in path.encode().split(b"/"):
            if part.startswith(b"{"):
                node.name = node = node.name or RouteNode()
            else:
                node = node.literals.setdefault(part, RouteNode())
        node.methods[method] = route

    def find(self, method: str, raw_path: bytes) -> tuple[T, Sequence[str]]:
        """The route and the names in its path, decoded. Raises NotFound, MethodNotAllowed."""
        node: RouteNode[T] | None = self._root
        names: list[str] = []
        for part in raw_path.split(b"/"):
            literal = node.literals.get(part)
            if literal is not None:
                node = literal
                continue
            node = node.name
            if node is None:
                raise NotFound("there is nothing at this address")
            names.append(_decode(part))
        if not node.methods:
            raise NotFound("there is nothing at this address")
        route = node.methods.get(method)
        if route is None:
            allowed = sorted(node.methods)
            raise MethodNotAllowed(f"this address takes {', '.join(allowed)}", allow=allowed)
        return route, names


def _decode(part: bytes) -> str:
    raw = unquote_to_bytes(part) if b"%" in part else part
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("the path is not UTF-8") from None
