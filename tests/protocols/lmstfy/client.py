"""lmstfy's calls as a test speaks of them; each returns the raw response."""

import base64
from typing import Any
from urllib.parse import quote

from tests.protocols.lmstfy.wire import Address, Headers, Response


class Lmstfy:
    """A client of one namespace. `token` goes into every call unless the call brings its own headers."""

    def __init__(self, api: Address, admin: Address, namespace: str, token: str) -> None:
        self.api = api
        self.admin = admin
        self.namespace = namespace
        self.token = token

    @classmethod
    async def enter(cls, api: Address, admin: Address, namespace: str) -> "Lmstfy":
        made = await admin.request("POST", f"/token/{namespace}", query={"description": "a test"})
        assert made.status == 201, made
        return cls(api, admin, namespace, made.json()["token"])

    async def call(
        self, method: str, path: str, *, body: bytes = b"", headers: Headers | None = None, **query: object
    ) -> Response:
        """`path` is what follows the namespace, such as `q/size`."""
        given = dict(headers) if headers is not None else {}
        sent = {"X-Token": self.token, **given} if "X-Token" not in given else given
        return await self.api.request(
            method, f"/api/{self.namespace}/{quote(path, safe='/,%')}", body=body, headers=sent, query=query
        )

    async def publish(self, queue: str, body: bytes = b"x", **query: object) -> str:
        response = await self.call("PUT", queue, body=body, **query)
        assert response.status == 201, response
        return str(response.json()["job_id"])

    async def consume(self, queue: str, **query: object) -> Any:
        """The job or jobs; None if there are none."""
        response = await self.call("GET", queue, **query)
        if response.status == 404:
            assert response.json() == {"msg": "no job available"}
            return None
        assert response.status == 200, response
        return response.json()

    async def take(self, queue: str, **query: object) -> bytes:
        """The body of one job, which must be there."""
        job = await self.consume(queue, **query)
        return base64.b64decode(job["data"])

    async def ack(self, queue: str, job_id: str) -> Response:
        return await self.call("DELETE", f"{queue}/job/{job_id}")

    async def size(self, queue: str) -> int:
        return int((await self.call("GET", f"{queue}/size")).json()["size"])

    async def dead_size(self, queue: str) -> int:
        return int((await self.call("GET", f"{queue}/deadletter/size")).json()["size"])
