"""A line of the journal is complete or it is damage."""

import pytest

from duetime.job import Event
from duetime.journal.events import Entry, body_fields, body_of
from duetime.journal.lines import read_line, write_line

ENTRY = Entry(ts=1, wrote_at=2, node="n", seq=3, event=Event.ACCEPTED, id="é", attributes={"a": "b"}, body="x\ny")


def test_a_line_is_read_as_it_was_written() -> None:
    assert read_line(write_line(ENTRY)) == ENTRY


def test_a_line_has_its_check_sum_and_length_in_front() -> None:
    line = write_line(Entry(ts=1, wrote_at=1, node="n", seq=1, event=Event.HEARTBEAT))
    assert line == b'71e733d80000003c {"ts":1,"wrote_at":1,"node":"n","seq":1,"event":"heartbeat"}\n'


@pytest.mark.parametrize("body", [b"", b"text", "é".encode(), b"\xff\x00"])
def test_any_body_comes_back(body: bytes) -> None:
    entry = Entry(ts=1, wrote_at=1, node="n", seq=1, event=Event.ACCEPTED, **body_fields(body))
    assert body_of(read_line(write_line(entry))) == body


def test_an_entry_without_a_body_has_none() -> None:
    assert body_of(Entry(ts=1, wrote_at=1, node="n", seq=1, event=Event.ACKED)) is None


def test_a_line_cut_anywhere_is_damage() -> None:
    line = write_line(ENTRY)
    for end in range(len(line)):
        with pytest.raises(ValueError, match=r"cut|head"):
            read_line(line[:end])


def test_a_flipped_bit_anywhere_is_damage() -> None:
    line = write_line(ENTRY)
    for at in range(len(line)):
        damaged = line[:at] + bytes([line[at] ^ 1]) + line[at + 1 :]
        with pytest.raises(ValueError):  # noqa: PT011
            read_line(damaged)
