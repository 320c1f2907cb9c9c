"""The pipeline `replay`: the arrivals of a past window, pushed again or simulated."""
