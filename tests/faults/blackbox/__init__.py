"""Real clients, a real server and a real store with a nemesis between them, and a checker of what the clients saw.

`make faults` runs it on every store (`python -m tests.faults.blackbox`); test_blackbox.py runs a short form of it.
"""
