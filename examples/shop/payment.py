"""Check an order five minutes after its payment began: a task that a worker runs.

    python examples/shop/payment.py           # a minute lasts a second
    python examples/shop/payment.py --minute 0.1

In a real shop the web server calls `check_payment.later(...)`, and `duetime work payment:app` runs elsewhere.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import duetime

app = duetime.App(os.environ.get("DUETIME_URL", "sqlite:shop.db"))
PAID = {"order-1"}
"""What the bank would answer."""


@app.task(queue="payments", tries=3, backoff="1m")
def check_payment(order: str) -> None:
    if order in PAID:
        print(f"{order} is paid: ship it", flush=True)
    else:
        print(f"{order} is not paid: cancel it and free the stock", flush=True)


def main(minute: float) -> None:
    for order in ("order-1", "order-2"):
        check_payment.options(id=f"check-{order}").later(5 * minute, order)
        print(f"{order}: payment began, check in 5 minutes", flush=True)
    app.close()
    command = [sys.executable, "-c", "from duetime.cli.main import main; main()", "work", "payment:app"]
    subprocess.run(
        [*command, "--pool", "threads", "--concurrency", "1", "--max-jobs", "2"], check=True, cwd=Path(__file__).parent
    )


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--minute", type=float, default=1.0, help="seconds that a minute lasts")
    given = options.parse_args()
    if "DUETIME_URL" in os.environ:
        main(given.minute)
    else:  # start again with a store that is removed at the end
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "DUETIME_URL": f"sqlite:{folder}/jobs.db"}
            sys.exit(subprocess.run([sys.executable, *sys.argv], env=environment, check=False).returncode)
