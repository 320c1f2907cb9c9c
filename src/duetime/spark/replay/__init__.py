"""A past window's arrivals, again."""
