"""Notify another shop by HTTP; while it fails, try again after 1, 3, 5 and 7 minutes.

    python examples/shop/webhook.py           # a minute lasts a second
    python examples/shop/webhook.py --minute 0.1

Starts a receiver that fails four times, and a Duetime server that delivers the jobs of the topic `paid` to it.
"""

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import duetime
from duetime.client.topics import Topics

FAILURES = 4


class Receiver(BaseHTTPRequestHandler):
    """The other shop. It answers 503 until it has recovered."""

    calls: list[float]
    minute: float
    done: threading.Event

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        self.calls.append(time.monotonic())
        is_ok = len(self.calls) > FAILURES
        waited = (self.calls[-1] - self.calls[-2]) / self.minute if len(self.calls) > 1 else 0
        print(f"attempt {len(self.calls)} after {waited:.1f} minutes: {'ok' if is_ok else 503} {body}", flush=True)
        self.send_response(200 if is_ok else 503)
        self.end_headers()
        if is_ok:
            self.done.set()

    def log_message(self, format: str, *args: object) -> None:
        """The story prints its own lines."""


@contextmanager
def server(folder: str) -> Iterator[str]:
    """A Duetime server on a free port; yields the address of its API."""
    command = [sys.executable, "-c", "from duetime.cli.main import main; main()", "serve", "--dev"]
    command += ["--port", "0", "--admin-port", "0", "--store", "sqlite:jobs.db"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield next(line.split()[1] for line in process.stdout if line.split()[:1] == ["API"])
        finally:
            process.terminate()
            process.communicate()


def main(minute: float) -> None:
    Receiver.calls, Receiver.minute, Receiver.done = [], minute, threading.Event()
    receiver = HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    delays = ",".join(f"{round(one * minute * 1000)}ms" for one in (1, 3, 5, 7))
    with tempfile.TemporaryDirectory() as folder, server(folder) as url, duetime.connect(url) as client:
        callback = f"http://127.0.0.1:{receiver.server_port}/paid"
        topics = Topics(client)
        topics.add("paid", callback, schedule=delays, cap=4)
        topics.add_job("paid", {"order": 17}, id="paid-17")
        Receiver.done.wait()
    receiver.shutdown()


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--minute", type=float, default=1.0, help="seconds that a minute lasts")
    main(options.parse_args().minute)
