"""`duetime ...`: everything from a shell. `main.py` is the app, `commands.py` lists what talks to queues."""
