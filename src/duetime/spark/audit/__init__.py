"""The pipeline `audit`: checks the conservation law and names the jobs that break it."""
