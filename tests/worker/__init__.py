"""Tasks and the worker daemon, with real processes."""
