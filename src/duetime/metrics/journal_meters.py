"""The metrics of a process's journal."""

from duetime.journal.journal import Journal
from duetime.metrics.meters import Meters


def watch_journal(meters: Meters, journal: Journal) -> None:
    """From now on every snapshot has the journal's numbers."""
    entries = meters.counter("duetime_journal_entries_total", "Entries written to the journal.").of()
    groups = meters.counter("duetime_journal_groups_total", "Groups of entries written to the journal.").of()
    size = meters.counter("duetime_journal_bytes_total", "Bytes written to the journal.").of()
    backlog = meters.level("duetime_journal_backlog_bytes", "Bytes that could not be written to the journal yet.").of()
    failing = meters.level("duetime_journal_failing", "Processes whose journal cannot be written.").of()
    free = meters.level(
        "duetime_journal_free_bytes", "Room on the journal's disk; pushes end at journal_reserve.", shared=True
    ).of()
    lag = meters.level(
        "duetime_journal_ship_lag_seconds", "Age of the oldest sealed segment without a verified copy.", shared=True
    ).of()

    def look() -> None:
        writer = journal.writer
        entries.value, groups.value, size.value = writer.entries, writer.groups, writer.size
        backlog.value, failing.value = writer.backlog, float(writer.failure is not None)
        free.value, lag.value = writer.free, journal.ship_lag_s

    meters.before_snapshot(look)
