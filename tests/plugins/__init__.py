"""Fixtures and reporting by topic, one module each; `tests/conftest.py` lists them."""
