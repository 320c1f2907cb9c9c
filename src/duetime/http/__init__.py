"""The HTTP/1.1 server: sockets, connections, requests. It knows nothing of queues."""
