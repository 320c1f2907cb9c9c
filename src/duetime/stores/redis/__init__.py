"""The Redis store: one Lua script per verb, on a single Redis, behind Sentinel, or on a Cluster."""
