"""The HTTP doors: what listens, what is answered, and where a door plugs in.

service, exchange, http1, listener     HTTP/1.1 on sockets, for any ASGI application
app, health                            the applications of the two listeners
host                                   stores, engines, listeners and signals of one process
"""
