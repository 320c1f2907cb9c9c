"""Events -> one row per job."""
