"""The server process: its wiring, its listeners, and the supervision of several worker processes."""
