"""The whole story on one machine."""
