"""The conservation law, and who breaks it."""
