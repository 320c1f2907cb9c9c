"""Metrics: counting in every process of a server, and the text of /metrics for all of them."""
