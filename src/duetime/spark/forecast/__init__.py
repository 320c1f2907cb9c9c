"""The pipeline `forecast`: which queue will be how late, and when."""
