"""Formal models of the guarantees, checked over all interleavings of two processes."""
