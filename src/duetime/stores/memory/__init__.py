"""The reference store: the contract in plain Python, in one process's memory."""
