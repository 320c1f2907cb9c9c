"""Which queue will be how late, and when."""
