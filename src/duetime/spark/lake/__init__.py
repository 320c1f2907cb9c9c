"""The lake: partitioned tables, each published by one manifest."""
