"""Job ids in lmstfy's layout: a ULID whose last four bytes are the delay; a leading `1` marks version 1."""

from duetime.ids import LENGTH, IdMaker, timestamp_ms

VERSION_1 = "1"


def make_id(ids: IdMaker, delay_s: int, *, version_1: bool) -> str:
    job_id = ids.make_with_delay(delay_s)
    return VERSION_1 + job_id if version_1 else job_id


def elapsed_ms(job_id: str, now_ms: int) -> int:
    """Since the id was made; 0 for one that does not say, or says later than now."""
    if len(job_id) == LENGTH + 1:
        job_id = job_id[1:]
    try:
        return max(now_ms - timestamp_ms(job_id), 0)
    except ValueError:
        return 0
