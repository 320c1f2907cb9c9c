"""What the benchmark of workers is made of."""
