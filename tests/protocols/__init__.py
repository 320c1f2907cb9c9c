"""The protocols, over real sockets."""
