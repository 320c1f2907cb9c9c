"""The web console, under /console on the admin port: see, find and mend jobs, queues and topics from any browser.

Pages are drawn on the server (templates/); JavaScript only refreshes them. `app.py` has every address on one screen.
"""

from duetime.console.app import make_console
from duetime.console.live import LiveFigures
from duetime.console.parts import ConsoleParts
from duetime.console.rate_history import RateHistory

__all__ = ["ConsoleParts", "LiveFigures", "RateHistory", "make_console"]
