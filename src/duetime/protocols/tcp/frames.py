"""Frames: four ASCII digits that say how many bytes of JSON follow. No I/O.

    0042{"cmd":"get","topic":"order","id":"1001"}

Frames arrive in pieces and in rows; `Frames` puts them together. A length that is no number, or nothing, is the end of
the conversation: there is no way to find the next frame.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

HEAD = 4
MAX_FRAME = 9999


class BadFrame(Exception):
    """What came is no frame. The connection must be closed."""


class Frames:
    """Give it what arrives; it gives back what is complete."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Raises BadFrame where a length is expected and something else comes; frames before it are given first."""
        self._buffer += data
        while len(self._buffer) >= HEAD:
            length = _length(bytes(self._buffer[:HEAD]))
            if len(self._buffer) < HEAD + length:
                return
            frame = bytes(self._buffer[HEAD : HEAD + length])
            del self._buffer[: HEAD + length]
            yield frame
        if self._buffer and not self._buffer.isdigit():
            raise BadFrame(f"a length is {HEAD} digits, not {bytes(self._buffer)!r}")


def _length(head: bytes) -> int:
    if not head.isdigit() or head == b"0000":
        raise BadFrame(f"a length is {HEAD} digits, not {head!r}")
    return int(head)


def frame(value: Any) -> bytes:
    """Raises OverflowError for what does not fit into one."""
    text = msgspec.json.encode(value)
    if len(text) > MAX_FRAME:
        raise OverflowError(f"a frame has at most {MAX_FRAME} bytes, not {len(text)}")
    return b"%04d%b" % (len(text), text)
