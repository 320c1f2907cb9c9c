"""The server process: its wiring, its entrances, and the supervision of several worker processes."""
