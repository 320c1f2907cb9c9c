"""Counters and percentiles per queue and minute."""
