"""Callbacks to a real receiver."""
