"""The parts of the benchmark `audit`: its history, and the peer that is asked the same."""
