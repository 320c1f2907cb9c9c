"""Pushing again what was promised and is gone."""
