"""The doors, over real sockets."""
