"""One module per pipeline command. Spark is imported inside the functions: `duetime --help` must not wait for it."""
