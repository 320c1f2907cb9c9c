"""A member who renews gets no letter now, but one before the new end; a member who leaves gets none.

python examples/shop/renewal.py           # a day lasts a second
python examples/shop/renewal.py --day 0.1
"""

import argparse
import tempfile

import duetime


def main(day: float) -> None:
    with tempfile.TemporaryDirectory() as folder, duetime.connect(f"sqlite:{folder}/jobs.db") as client:
        recall = client.queue("recall")
        for member in ("ann", "bob", "eve"):
            recall.later(2 * day, {"member": member}, id=f"recall-{member}")

        recall.reschedule("recall-bob", delay=4 * day)  # bob renews: the letter is due later
        recall.cancel("recall-eve")  # eve leaves the shop: no letter at all
        try:
            recall.cancel("recall-eve")
        except duetime.JobNotFound:
            print("eve: no letter is waiting any more", flush=True)

        for _ in range(recall.counts().total):
            with recall.take() as job:
                print(f"letter to {job.json()['member']}", flush=True)
        print(f"{recall.counts().total} letters are left", flush=True)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--day", type=float, default=1.0, help="seconds that a day lasts")
    main(options.parse_args().day)
