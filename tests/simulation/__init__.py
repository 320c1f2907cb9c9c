"""Engines on a memory store in virtual time: the same seed gives the same history."""
