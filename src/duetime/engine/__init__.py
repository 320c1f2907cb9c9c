"""The rules on top of a store: what every door calls."""

from duetime.engine.engine import Engine

__all__ = ["Engine"]
