"""php-delayqueue's TCP protocol, for its existing PHP and Java clients."""

from duetime.protocols.tcp.door import TcpDoor, TcpOptions

__all__ = ["TcpDoor", "TcpOptions"]
