"""Nouns and rules without I/O: job, names, ids, clock, errors, settings. Every other package may import them."""
