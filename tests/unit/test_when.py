"""Times as people type them, read on Wednesday 2026-11-18 at 15:30 in Berlin."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from duetime.model.errors import InvalidTime
from duetime.model.when import When, read_when

BERLIN = ZoneInfo("Europe/Berlin")
NOW = int(datetime(2026, 11, 18, 15, 30, tzinfo=BERLIN).timestamp() * 1000)


def at(*day: int) -> When:
    return When(due_at=int(datetime(*day, tzinfo=BERLIN).timestamp() * 1000))  # pyright: ignore


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("now", When(delay_ms=0)),
        ("90", When(delay_ms=90_000)),
        ("10m", When(delay_ms=600_000)),
        ("5 minutes", When(delay_ms=300_000)),
        ("in 5 minutes", When(delay_ms=300_000)),
        ("1h30", When(delay_ms=5_400_000)),
        ("1 hour and 30 min", When(delay_ms=5_400_000)),
        ("5m 3", When(delay_ms=303_000)),
        ("1.5 days", When(delay_ms=129_600_000)),
        ("5分钟", When(delay_ms=300_000)),
        ("-1h", When(delay_ms=-3_600_000)),
        ("2 days ago", When(delay_ms=-172_800_000)),
        ("tomorrow", at(2026, 11, 19)),
        ("Tomorrow 09:00", at(2026, 11, 19, 9)),
        ("明天 09:00", at(2026, 11, 19, 9)),
        ("tomorrow at 9am", at(2026, 11, 19, 9)),
        ("today 18:00", at(2026, 11, 18, 18)),
        ("yesterday 12pm", at(2026, 11, 17, 12)),
        ("18:00", at(2026, 11, 18, 18)),
        ("09:00", at(2026, 11, 19, 9)),
        ("fri 18:00", at(2026, 11, 20, 18)),
        ("wednesday", at(2026, 11, 25)),
        ("2026-12-01 09:00", at(2026, 12, 1, 9)),
        ("2026-12-01", at(2026, 12, 1)),
        ("2027-07-01T09:00", at(2027, 7, 1, 9)),
        ("2026-12-01T08:00:00Z", at(2026, 12, 1, 9)),
        ("2026-12-01 08:00 UTC", at(2026, 12, 1, 9)),
        ("1796112000000", When(due_at=1_796_112_000_000)),
    ],
)
def test_a_time_is_read(text: str, when: When) -> None:
    assert read_when(text, now_ms=NOW, zone=BERLIN) == when


@pytest.mark.parametrize("text", ["", "soon", "5 moons", "1h30 2", "25:00", "13pm", "fri 9 o'clock", "9" * 70])
def test_a_wrong_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(InvalidTime, match=r"time must"):
        read_when(text, now_ms=NOW, zone=BERLIN)


def test_a_delay_and_an_instant_become_an_instant() -> None:
    assert When(delay_ms=1000).at(NOW) == NOW + 1000
    assert When(due_at=5).at(NOW) == 5
    assert read_when("2027-07-01 09:00", now_ms=NOW, zone=None).due_at is not None
    assert read_when("10:00", now_ms=0, zone=UTC) == When(due_at=36_000_000)
