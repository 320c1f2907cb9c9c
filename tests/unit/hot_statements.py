"""Statements that PostgreSQL and MariaDB run alike, with values for the large tables of the tests of their plans."""

from typing import Any

ROWS_AT_SCALE_1 = 10_000
"""Grows with the square of the scale: a million in `make test-full`."""

IDS = [f"job {number * 900}" for number in range(1, 11)]
HERE = {"namespace": "shop", "name": "mail"}
AFTER = {"queue": 1, "after_at": 5_000, "after_id": "job 5000", "limit": 10}

HOT_ON_BOTH: dict[str, dict[str, Any]] = {
    "lock_queue": HERE,
    "load_queue": HERE,
    "heads": {"queue": 1},
    "find_jobs": {"queue": 1, "ids": IDS},
    "get_payloads": {"queue": 1, "ids": IDS},
    "get_jobs": {"queue": 1, "ids": IDS},
    "job_sizes": {"queue": 1, "ids": IDS},
    "ready_jobs": {**AFTER, "priority": 2, "now": 10**12},
    "ready_ahead": {"queue": 1, "now": None, "limit": 10},
    "lease_jobs": {"queue": 1, "lease_until": 10**12, "ids": IDS},
    "delete_jobs": {"queue": 1, "ids": IDS},
    "lapsed_jobs": {"queue": 1, "now": 10**12, "limit": 10},
    "expired_jobs": {"queue": 1, "now": 10**12, "limit": 10},
    "longest_dead": {"queue": 1, "limit": 10},
    "next_lapse": {"queue": 1},
    "next_expiry": {"queue": 1},
    "list_waiting": {**AFTER, "priority": 2, "last": 10**12, "alive_at": 0},
    "list_leased": AFTER,
    "list_dead": AFTER,
    "some_jobs": {"queue": 1, "limit": 10},
    "queues_to_reap": {"now": 10**12, "limit": 10},
    "next_reap": {"after": 0},
    "has_ended": {"now": 1, "before": 1},
    "get_marks": {"namespace": "shop", "queue": "mail", "names": ["mark 77", "mark 78"]},
    "result_sizes": {"namespace": "shop", "queue": "mail", "ids": IDS, "now": 1},
    "get_results": {"namespace": "shop", "queue": "mail", "ids": IDS, "now": 1},
    "list_joins": {"namespace": "shop", "queue": "mail", "after": "\x01", "before": "\x02", "now": 1, "limit": 10},
    "outbox_queues": {"limit": 10},
    "next_outbox_jobs": {"namespace": "shop", "name": "queue 7", "limit": 10},
    "outbox_rules": HERE,
    "abandoned_receipts": {"namespace": "", "queue": "push_in", "until": 10**13, "limit": 10},
    "delete_receipts": {"namespace": "", "queue": "push_in", "names": IDS},
}
