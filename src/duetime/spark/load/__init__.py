"""Loading a table: rows become jobs, exactly once."""
