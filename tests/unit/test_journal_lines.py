"""A line of the journal is complete or it is damage."""

import pytest

from duetime.journal.events import Draft, Entry, body_fields, body_of, place_of, read_line, write_draft, write_line
from duetime.model.job import Event

DRAFT = Draft(ts=1, event=Event.ACCEPTED, id="é", attributes={"a": "b"}, body="x\ny")
ENTRY = Entry(ts=1, wrote_at=2, node="n", seq=3, event=Event.ACCEPTED, id="é", attributes={"a": "b"}, body="x\ny")
LINE = write_draft(DRAFT, place_of(2, "n", 3))


def test_a_line_is_read_as_it_was_written() -> None:
    assert read_line(LINE) == ENTRY
    assert read_line(write_line(ENTRY)) == ENTRY


def test_a_line_has_its_check_sum_and_length_in_front() -> None:
    line = write_draft(Draft(ts=1, event=Event.HEARTBEAT), place_of(1, "n", 1))
    assert line == b'1112b62b0000003c {"wrote_at":1,"node":"n","seq":1,"ts":1,"event":"heartbeat"}\n'


@pytest.mark.parametrize("body", [b"", b"text", "é".encode(), b"\xff\x00"])
def test_any_body_comes_back(body: bytes) -> None:
    draft = Draft(ts=1, event=Event.ACCEPTED, **body_fields(body))
    assert body_of(read_line(write_draft(draft, place_of(1, "n", 1)))) == body


def test_an_entry_without_a_body_has_none() -> None:
    assert body_of(Entry(ts=1, wrote_at=1, node="n", seq=1, event=Event.ACKED)) is None


def test_a_line_cut_anywhere_is_damage() -> None:
    for end in range(len(LINE)):
        with pytest.raises(ValueError, match=r"cut|head"):
            read_line(LINE[:end])


def test_a_flipped_bit_anywhere_is_damage() -> None:
    for at in range(len(LINE)):
        damaged = LINE[:at] + bytes([LINE[at] ^ 1]) + LINE[at + 1 :]
        with pytest.raises(ValueError):  # noqa: PT011
            read_line(damaged)
