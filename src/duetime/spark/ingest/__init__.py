"""The pipeline `ingest`: segments of the journal -> the table `events`."""
