"""The socket between a worker and one process of its pool.

Message by message in both directions, so that a message is read whole by exactly one reader. The worker keeps a
copy of the process's end: what that has not read yet, the worker can take back. A message too large for a socket goes
through a file.

To the process: a job (its number and JobInfo), or nothing, which ends it. From it: 4 bytes, the number of a job that
is done; or an array, [number, Outcome] or [number, word, value], or [number, file, , ] for a large outcome.
"""

import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from duetime.worker.runs import JobInfo, Outcome

LARGE = 60_000 if sys.platform == "linux" else 1_900
BUFFER = 65_536
NUMBER = 4
KIND = socket.SOCK_SEQPACKET if sys.platform == "linux" else socket.SOCK_DGRAM
END = b"e"

_encode = msgspec.msgpack.Encoder().encode
_info = msgspec.msgpack.Decoder(JobInfo)
_any = msgspec.msgpack.Decoder()


def pair() -> tuple[socket.socket, socket.socket]:
    """The worker's end and the process's."""
    return socket.socketpair(socket.AF_UNIX, KIND)


def write_job(number: int, info: JobInfo) -> bytes:
    message = b"j" + number.to_bytes(NUMBER, "big") + _encode(info)
    return message if len(message) <= LARGE else b"f" + _spill(message)


def read_job(message: bytes) -> tuple[int, JobInfo]:
    if message[:1] == b"f":
        message = _unspill(message[1:])
    return read_number(message), _info.decode(message[1 + NUMBER :])


def read_number(message: bytes) -> int:
    return int.from_bytes(message[1 : 1 + NUMBER], "big")


def forget(message: bytes) -> int:
    """The number of a job that will not be sent again in this message."""
    return read_number(_unspill(message[1:]) if message[:1] == b"f" else message)


def write_done(number: int) -> bytes:
    return number.to_bytes(NUMBER, "big")


def write_outcome(number: int, outcome: Outcome) -> bytes:
    message = _encode((number, outcome))
    return message if len(message) <= LARGE else _encode((number, _spill(message), None, None))


def write_word(number: int, word: str, value: int) -> bytes:
    return _encode((number, word, value))


def read_answer(message: bytes) -> tuple[int, Outcome | None, tuple[str, int] | None]:
    """The number of a job, how the job ended (None: it still runs), and what its task said about it, if anything."""
    parts: list[Any] = _any.decode(message)
    if len(parts) == 4:
        parts = _any.decode(_unspill(parts[1]))
    if len(parts) == 3:
        return parts[0], None, (parts[1], parts[2])
    return parts[0], msgspec.convert(parts[1], Outcome), None


def _spill(message: bytes) -> bytes:
    handle, path = tempfile.mkstemp(prefix="duetime-job-")
    with os.fdopen(handle, "wb") as file:
        file.write(message)
    return path.encode()


def _unspill(name: bytes) -> bytes:
    path = Path(name.decode())
    message = path.read_bytes()
    path.unlink()
    return message
