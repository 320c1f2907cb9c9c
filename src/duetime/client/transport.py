"""What carries a client's Calls: HTTP, or an engine of this process."""

from typing import Protocol, TypeVar

from duetime.client.call import Call

Answer = TypeVar("Answer")

UNREACHABLE = "the server cannot be reached"
"""How an error begins if no server answered; one that answered says itself what it cannot reach."""


class AsyncTransport(Protocol):
    async def send(self, call: Call[Answer]) -> Answer: ...

    async def close(self) -> None: ...


class SyncTransport(Protocol):
    def send(self, call: Call[Answer]) -> Answer: ...

    def close(self) -> None: ...


def is_http(url: str) -> bool:
    return url.startswith(("http://", "https://"))
