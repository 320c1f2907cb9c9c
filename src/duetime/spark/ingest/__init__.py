"""Journal segments -> the table events."""
