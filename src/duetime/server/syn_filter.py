"""A listening TCP socket that completes no further connections, and still hands out those that it has.

Between the last accept and the close of a listening socket the kernel may complete one more connection, and the close
resets it: that client cannot tell whether its request was answered by somebody. A filter that drops SYN packets closes
this gap. A client whose SYN was dropped sends it again after a second, and is refused then.
"""

import ctypes
import socket
import struct
import sys
from contextlib import suppress

SO_ATTACH_FILTER = 26
"""Linux only; elsewhere, and where a sandbox forbids it, the gap stays."""
_INSTRUCTIONS = (
    (0x30, 0, 0, 13),  # load the byte with the TCP flags
    (0x45, 0, 1, 0x02),  # SYN is set: go on, else skip one
    (0x06, 0, 0, 0),  # drop the packet
    (0x06, 0, 0, 0xFFFF_FFFF),  # keep the packet
)


def drop_new_connections(sock: socket.socket) -> None:
    """Drop new connections, in all processes that share the socket, for good."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6) or sys.platform != "linux":
        return
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in _INSTRUCTIONS))
    with suppress(OSError):
        described = struct.pack("HP", len(_INSTRUCTIONS), ctypes.addressof(program))
        sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, described)
