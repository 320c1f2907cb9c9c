"""The parts of `make bench ARGS=http`."""
