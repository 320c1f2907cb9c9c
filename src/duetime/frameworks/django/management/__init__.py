"""The commands that Django finds."""
