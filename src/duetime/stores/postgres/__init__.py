"""The PostgreSQL store: one database, shared by processes on several machines."""
