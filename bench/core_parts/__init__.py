"""What `bench/core.py` measures, one question per file."""
