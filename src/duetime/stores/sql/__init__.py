"""Stores on SQL databases: one set of rules and rows, statements and connections per dialect."""
