"""PostgreSQL: several processes, one database."""
