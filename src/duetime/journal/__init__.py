"""The journal: the append-only log of everything that happened to every job, kept outside the store."""
