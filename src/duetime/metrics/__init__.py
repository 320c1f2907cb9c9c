"""What is counted and shown on /metrics, for all processes of a server."""
