"""Duetime, a delayed job queue: push a job now, have it delivered when it is due, at least once, never early."""

__version__ = "0.1.0"
