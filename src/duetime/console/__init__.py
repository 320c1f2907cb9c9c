"""The web console, under /console on the admin port: see, find and repair jobs, queues and topics from any browser.

Pages are drawn on the server (templates/); JavaScript only refreshes them. `app.py` has every address on one screen; a
server imports it with the first request for a page.
"""
