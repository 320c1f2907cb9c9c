"""How a line of the journal is written and read: 8 hex digits of CRC-32, 8 of length, a blank, the JSON, a newline.

A line is either complete or damaged. The check sum is over the JSON and the length counts its bytes, so a torn write,
a flipped bit and a cut file are all found, and found at the right place.
"""

from zlib import crc32

import msgspec

from duetime.journal.events import Draft, Entry

HEAD = 17
"""Bytes before the JSON."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Entry).decode


def write_line(entry: Entry) -> bytes:
    return write_text(_encode(entry))


def write_draft(draft: Draft, place: bytes) -> bytes:
    """The line of a draft with its place, which is what `place_of` answers. No Entry is made for it, to save time."""
    return write_text(place + _encode(draft)[1:])


def place_of(wrote_at: int, node: str, seq: int) -> bytes:
    return b"%b%d," % (place_before_seq(wrote_at, node), seq)


def place_before_seq(wrote_at: int, node: str) -> bytes:
    return b'{"wrote_at":%d,"node":%b,"seq":' % (wrote_at, _encode(node))


def write_text(text: bytes) -> bytes:
    """The line of an entry that was encoded as JSON already."""
    return b"%08x%08x %b\n" % (crc32(text), len(text), text)


def read_line(line: bytes) -> Entry:
    """The entry of a line. Raises ValueError that says what is wrong with the line."""
    if len(line) <= HEAD or line[HEAD - 1 : HEAD] != b" " or not line.endswith(b"\n"):
        raise ValueError("the line is cut" if not line.endswith(b"\n") else "the line has no head")
    text = line[HEAD:-1]
    if line[8 : HEAD - 1] != b"%08x" % len(text):
        raise ValueError(f"the line holds {len(text)} bytes and says another length")
    if line[:8] != b"%08x" % crc32(text):
        raise ValueError("the check sum does not fit")
    try:
        return _decode(text)
    except msgspec.DecodeError as error:
        raise ValueError(f"not an entry: {error}") from None
