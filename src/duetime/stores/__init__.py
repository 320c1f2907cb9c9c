"""Where jobs are kept: the contract, its implementations, and the URL that chooses one."""
