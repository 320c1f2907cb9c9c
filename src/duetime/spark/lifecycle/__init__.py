"""The pipeline `lifecycle`: events -> one row per job."""
