"""Send a letter to each member three days before the membership ends.

python examples/shop/recall.py            # a day lasts a second
python examples/shop/recall.py --day 0.1
"""

import argparse
import tempfile
from datetime import UTC, datetime, timedelta

import duetime

MEMBERS = {"ann": 4, "bob": 5, "eve": 3}
"""Days until the membership ends."""


def main(day: float) -> None:
    with tempfile.TemporaryDirectory() as folder, duetime.connect(f"sqlite:{folder}/jobs.db") as client:
        recall = client.queue("recall")
        start = datetime.now(UTC)
        for member, days in MEMBERS.items():
            # The id makes this safe to repeat: a second push of the same id keeps the first job.
            due = start + timedelta(seconds=(days - 3) * day)
            recall.later(due, {"member": member, "ends_in_days": 3}, id=f"recall-{member}", tries=3)
        for _ in MEMBERS:
            with recall.take() as job:  # sleeps until the next job is due; acks at the end of the block
                now = (datetime.now(UTC) - start).total_seconds() / day
                print(f"day {now:.1f}: letter to {job.json()['member']}, whose membership ends in 3 days", flush=True)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--day", type=float, default=1.0, help="seconds that a day lasts")
    main(options.parse_args().day)
