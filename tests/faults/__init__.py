"""What can go wrong, made to happen."""
