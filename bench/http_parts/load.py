"""wrk on a server: how many requests, how many of them failed, and what the server spent on them."""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.http_parts.servers import PATHS, Running, cpu_s

CONNECTIONS = 64
SCRIPTS = Path(__file__).parent

_DONE = re.compile(r"(\d+) requests in ([\d.]+)(ms|s|m)\b")
_FAILED = re.compile(r"Non-2xx or 3xx responses: (\d+)")
_BROKEN = re.compile(r"Socket errors: (.*)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0}


@dataclass(frozen=True)
class Measured:
    requests: int
    failed: int
    elapsed_s: float
    cpu_s: float
    store_cpu_s: float = 0.0

    @property
    def rate(self) -> float:
        return self.requests / self.elapsed_s

    @property
    def cpu_us(self) -> float:
        """Microseconds of the server's processes per request."""
        return self.cpu_s / self.requests * 1e6

    @property
    def store_cpu_us(self) -> float:
        """Microseconds of Redis per request; 0 where the store is in the server's processes."""
        return self.store_cpu_s / self.requests * 1e6


def wrk(server: Running, script: str, seconds: float, store: Sequence[int] = ()) -> Measured:
    """`store` are the processes of the store."""
    program = shutil.which("wrk")
    if program is None:
        raise SystemExit("wrk is not installed")
    command = [program, "-t1", f"-c{CONNECTIONS}", f"-d{max(1, round(seconds))}s", "-s"]
    command.append(str(SCRIPTS / f"{script}_{server.protocol}.lua"))
    path = PATHS[server.protocol]
    environment = os.environ | {"TOKEN": server.token, "QUEUE": path}
    before, store_before = server.cpu_s(), cpu_s(store)
    if script == "publish":
        path += {"lmstfy": "?ttl=0", "v1": "/jobs"}[server.protocol]
    done = subprocess.run(
        [*command, f"http://127.0.0.1:{server.port}{path}"],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    spent, store_spent = server.cpu_s() - before, cpu_s(store) - store_before
    found = _DONE.search(done.stdout)
    if found is None or _BROKEN.search(done.stdout):
        raise SystemExit(f"wrk says:\n{done.stdout}{done.stderr}")
    failed = _FAILED.search(done.stdout)
    elapsed_s = float(found[2]) * _SECONDS[found[3]]
    return Measured(int(found[1]), int(failed[1]) if failed else 0, elapsed_s, spent, store_spent)
