"""Where jobs are kept: the store contract, its implementations, and the URL that chooses one."""
