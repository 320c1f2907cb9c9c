"""The pipeline `stats`: counters and percentiles per queue and minute."""
