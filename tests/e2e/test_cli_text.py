"""The small texts: times as people write and read them, leases as a shell carries them."""

import pytest

from duetime.cli.consume import read_lease, write_lease
from duetime.cli.options import parse_attributes
from duetime.cli.output import body_text, preview, relative, safe
from duetime.model.errors import InvalidId, InvalidName, InvalidRequest, InvalidTime
from duetime.model.humanise import counted, span
from duetime.model.job import Lease
from duetime.model.names import Queue
from duetime.model.when import When, read_due


@pytest.mark.parametrize("job_id", ["j", "a:b/c d%41", "été ☃", "'$(rm)`", "x" * 128])
def test_a_lease_is_one_word_and_comes_back(job_id: str) -> None:
    lease = Lease(Queue("ns", "mail.v1"), job_id, 1_794_783_902_585, 3)
    text = write_lease(lease)
    assert set(text) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-~%:/")
    assert read_lease(f" {text}\n") == lease


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", InvalidRequest),
        ("ns/mail:j:1", InvalidRequest),
        ("ns/mail:j:1:x", InvalidRequest),
        ("ns/mail:j:1:²", InvalidRequest),
        ("mail:j:1:1", InvalidName),
        ("ns/mail::1:1", InvalidId),
    ],
)
def test_a_wrong_lease_is_refused(text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        read_lease(text)


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("0", When(delay_ms=0)),
        ("90", When(delay_ms=90_000)),
        (" 1h30m ", When(delay_ms=5_400_000)),
        ("99999999", When(delay_ms=99_999_999_000)),
        ("3153600000s", When(delay_ms=3_153_600_000_000)),
        ("4070908800000", When(due_at=4_070_908_800_000)),
        ("2099-01-01T00:00:00Z", When(due_at=4_070_908_800_000)),
        ("2099-01-01T01:00:00+01:00", When(due_at=4_070_908_800_000)),
    ],
)
def test_when(text: str, when: When) -> None:
    assert read_due(text, zone=None) == when


@pytest.mark.parametrize("text", ["", "soon", "10x", "-5s", "9" * 30, "1795236220.5"])
def test_a_wrong_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidTime):
        read_due(text, zone=None)


def test_seconds_are_no_time_and_the_milliseconds_are_named() -> None:
    with pytest.raises(InvalidTime, match=r"give 1795236220000; a delay of over three years needs a unit: 1795236220s"):
        read_due("1795236220", zone=None)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0ms"),
        (999, "999ms"),
        (1000, "1s"),
        (1250, "1.2s"),
        (59_990, "60s"),
        (60_000, "1m"),
        (303_000, "5m 3s"),
        (7_500_000, "2h 5m"),
        (273_600_000, "3d 4h"),
    ],
)
def test_spans(ms: int, text: str) -> None:
    assert span(ms) == text


def test_before_and_after_now() -> None:
    assert (relative(5000, 3000), relative(3000, 5000), relative(0, 5000)) == ("in 2s", "2s ago", "-")


def test_attributes() -> None:
    assert parse_attributes(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}


def test_nothing_from_a_job_can_steer_the_terminal() -> None:
    assert safe("a\x1b[2J\r\x07b\n\t\u202e") == "a\ufffd[2J\ufffd\ufffdb\n\t\ufffd"
    assert body_text(b"\xff\x00") == "<2 bytes that are not text; --json has them in base64>"
    assert preview(b"a\nb  c") == "a b c"
    assert len(preview(b"x" * 100)) == 48


@pytest.mark.parametrize(("count", "text"), [(0, "0 jobs"), (1, "1 job"), (1200, "1,200 jobs")])
def test_a_count_has_its_noun(count: int, text: str) -> None:
    assert counted(count, "job") == text
