"""The HTTP/1.1 server: sockets, connections, requests. It is general: nothing in it is about queues."""
