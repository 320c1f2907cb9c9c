"""The rules on top of a store: called by every protocol and the SDK."""

from duetime.engine.engine import Engine

__all__ = ["Engine"]
