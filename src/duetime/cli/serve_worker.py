"""A worker process of `duetime serve --workers N`, which only its supervisor starts."""

import logging
import sys

from duetime.cli.process_title import set_process_title
from duetime.model.logs import reopen_logs, set_up_logging
from duetime.server.process import run
from duetime.server.supervision.worker import work


def main() -> None:
    set_process_title("duetime-serving")
    try:
        run(work(int(sys.argv[1]), set_up_logging, reopen_logs))
    except Exception:
        logging.getLogger("duetime.serve").critical("worker_failed", exc_info=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
