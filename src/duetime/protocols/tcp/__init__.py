"""php-delayqueue's TCP protocol, for its existing PHP and Java clients."""

from duetime.protocols.tcp.server import TcpOptions, TcpServer

__all__ = ["TcpOptions", "TcpServer"]
