"""Tasks and the worker daemon: functions that run later, somewhere else, and what runs them."""
