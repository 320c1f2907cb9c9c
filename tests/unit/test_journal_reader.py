"""Reading the journal: everything before damage is read, damage and gaps are values, nothing crashes."""

from pathlib import Path

import pytest

from duetime.journal.events import Draft, Entry, body_fields, body_of, place_of, read_line, write_draft, write_line
from duetime.journal.reader import (
    SCANNED,
    Damage,
    Gap,
    Item,
    Tail,
    last_entry,
    read_job,
    read_journal,
    read_node,
)
from duetime.journal.segments import Lock, open_name, sealed_name
from duetime.model.job import Event

NODE = "here-1"


def line(seq: int, node: str = NODE, **fields: object) -> bytes:
    draft = Draft(**{"ts": seq, "event": Event.ACCEPTED, "id": f"j{seq}", "body": "é\n", **fields})
    return write_draft(draft, place_of(seq, node, seq))


def entry(seq: int, node: str = NODE) -> Entry:
    return read_line(line(seq, node))


@pytest.fixture
def node(tmp_path: Path) -> Path:
    folder = tmp_path / NODE
    folder.mkdir()
    return folder


def given_segment(node: Path, first: int, last: int, content: bytes | None = None) -> Path:
    path = node / sealed_name(first, last)
    path.write_bytes(b"".join(line(seq, node.name) for seq in range(first, last + 1)) if content is None else content)
    return path


def entries(items: list[Item]) -> list[Entry]:
    return [item for item in items if isinstance(item, Entry)]


def test_segments_are_read_in_the_order_of_their_entries(node: Path) -> None:
    for first, last in ((4, 4), (1, 3), (5, 9)):
        given_segment(node, first, last)
    assert list(read_journal(node.parent)) == [entry(seq) for seq in range(1, 10)]


def test_nodes_are_read_one_after_the_other_or_some_of_them(tmp_path: Path) -> None:
    for name in ("b-2", "a-1"):
        (tmp_path / name).mkdir()
        given_segment(tmp_path / name, 1, 2)
    assert [(one.node, one.seq) for one in entries(list(read_journal(tmp_path)))] == [
        ("a-1", 1),
        ("a-1", 2),
        ("b-2", 1),
        ("b-2", 2),
    ]
    assert {one.node for one in entries(list(read_journal(tmp_path, only=["b-2"])))} == {"b-2"}


def test_there_may_be_no_journal_and_other_files_in_it(node: Path) -> None:
    assert list(read_journal(node / "nothing")) == []
    (node / "notes.txt").write_text("mine")
    (node.parent / "file").write_text("mine")
    (node.parent / ".hidden").mkdir()
    assert list(read_journal(node.parent)) == []


def test_a_segment_cut_at_every_byte_is_read_up_to_there(node: Path) -> None:
    whole = given_segment(node, 1, 3).read_bytes()
    ends = [len(b"".join(line(seq) for seq in range(1, last + 1))) for last in range(4)]
    for cut in range(len(whole)):
        path = given_segment(node, 1, 3, whole[:cut])
        items = list(read_node(node))
        complete = max(last for last in range(4) if ends[last] <= cut)
        torn = [] if cut in ends else [Damage(path, ends[complete], "the line is cut", cut - ends[complete])]
        assert items == [*(entry(seq) for seq in range(1, complete + 1)), *torn, Gap(NODE, complete + 1, 3)]


@pytest.mark.parametrize("change", [1, 0x80, 0xFF], ids=hex)
def test_a_segment_damaged_at_every_byte_is_read_around_it(node: Path, change: int) -> None:
    whole = given_segment(node, 1, 3).read_bytes()
    ends = [len(b"".join(line(seq) for seq in range(1, last + 1))) for last in range(4)]
    for at in range(len(whole)):
        path = given_segment(node, 1, 3, whole[:at] + bytes([whole[at] ^ change]) + whole[at + 1 :])
        items = list(read_node(node))
        hit = next(last for last in range(1, 4) if at < ends[last])
        damage = [item for item in items if isinstance(item, Damage)]
        assert [one.path for one in damage] == [path] * len(damage)
        assert damage[0].offset == ends[hit - 1]
        # A line end that is gone takes the next line with it, but nothing more.
        lost = [hit, hit + 1] if at == ends[hit] - 1 and hit < 3 else [hit]
        assert entries(items) == [entry(seq) for seq in (1, 2, 3) if seq not in lost]
        assert [item for item in items if isinstance(item, Gap)] == [Gap(NODE, lost[0], lost[-1])]


def test_a_line_that_became_two_is_two_damages(node: Path) -> None:
    whole = given_segment(node, 1, 2).read_bytes()
    given_segment(node, 1, 2, whole[:30] + b"\n" + whole[31:])
    damage, more, gap, second = read_node(node)
    assert isinstance(damage, Damage)
    assert isinstance(more, Damage)
    assert (damage.offset, more.offset) == (0, 31)
    assert (gap, second) == (Gap(NODE, 1, 1), entry(2))


def test_missing_segments_and_lines_are_gaps(node: Path) -> None:
    given_segment(node, 3, 4)
    given_segment(node, 8, 9)
    assert list(read_node(node)) == [Gap(NODE, 1, 2), entry(3), entry(4), Gap(NODE, 5, 7), entry(8), entry(9)]


def test_a_half_written_line_of_a_living_node_is_no_damage(node: Path) -> None:
    lock = Lock.acquire(node, create=True)
    assert lock
    path = node / open_name(1)
    path.write_bytes(line(1) + line(2)[:20])
    assert list(read_node(node)) == [entry(1)]
    lock.release(ended=False)
    assert list(read_node(node)) == [entry(1), Damage(path, len(line(1)), "the line is cut", 20)]


def test_a_tail_goes_on_where_it_was_while_segments_are_written_and_sealed(node: Path) -> None:
    lock = Lock.acquire(node, create=True)
    assert lock
    tail = Tail(node)
    assert list(tail.read()) == []
    path = node / open_name(1)
    path.write_bytes(line(1) + line(2)[:9])
    assert list(tail.read()) == [entry(1)]
    path.write_bytes(line(1) + line(2) + line(3))
    assert list(tail.read()) == [entry(2), entry(3)]
    path.rename(node / sealed_name(1, 3))
    assert list(tail.read()) == []
    (node / open_name(4)).write_bytes(line(4))
    assert list(tail.read()) == [entry(4)]
    lock.release(ended=True)


def test_a_segment_that_is_sealed_between_looking_and_reading_is_read(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = node / open_name(1)
    path.write_bytes(line(1))
    really_open = Path.open

    def seal_and_open(self: Path, *arguments: str) -> object:
        if self == path and path.exists():
            path.rename(node / sealed_name(1, 1))
        return really_open(self, *arguments)

    monkeypatch.setattr(Path, "open", seal_and_open)
    assert list(read_node(node)) == [entry(1)]


def test_a_segment_that_is_deleted_between_looking_and_reading_is_a_gap(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = given_segment(node, 1, 2)
    given_segment(node, 3, 3)
    really_open = Path.open

    def delete_and_open(self: Path, *arguments: str) -> object:
        if self == path:
            path.unlink(missing_ok=True)
        return really_open(self, *arguments)

    monkeypatch.setattr(Path, "open", delete_and_open)
    assert list(read_node(node)) == [Gap(NODE, 1, 2), entry(3)]


def test_the_entries_of_one_job_and_every_purge(node: Path) -> None:
    mine = {"id": 'my "job"', "event": Event.ACKED}
    lines = [
        line(1),
        line(2, **mine),
        line(3, attributes={"id": 'my "job"'}),
        line(4, id='my "job" 2'),
        line(5, id="", event=Event.PURGED),
        line(6, **mine)[:-4] + b"xxx\n",
    ]
    path = given_segment(node, 1, 6, b"".join(lines))
    found = list(read_job(node.parent, 'my "job"'))
    assert [one.seq if isinstance(one, Entry) else one for one in found] == [
        2,
        5,
        Damage(path, sum(map(len, lines[:5])), "the check sum does not fit", len(lines[5])),
    ]


def test_a_tail_that_goes_on_behind_an_entry_does_not_read_what_is_before(node: Path) -> None:
    """What was read long ago may be garbage by now: nobody looks at it."""
    given_segment(node, 1, 500, b"gone")
    path = given_segment(node, 501, 9_000)
    content = path.read_bytes()
    for after in (500, 501, 4_000, 8_998, 8_999):
        begin = content.index(line(after + 1, node.name))
        known = max(0, begin - 2 * SCANNED)
        path.write_bytes(b"x" * known + content[known:])
        items = list(Tail(node, after=after).read())
        assert [item.seq if isinstance(item, Entry) else item for item in items] == list(range(after + 1, 9_001))
    assert list(Tail(node, after=9_000).read()) == []


def test_a_tail_that_goes_on_sees_gaps_and_damage_behind_it(node: Path) -> None:
    given_segment(node, 1, 3)
    given_segment(node, 6, 8, line(6, node.name) + b"damaged\n" + line(8, node.name))
    found = list(Tail(node, after=2).read())
    assert [one for one in found if isinstance(one, Gap)] == [Gap(NODE, 4, 5), Gap(NODE, 7, 7)]
    assert [one.what for one in found if isinstance(one, Damage)] == [
        "the line has no head, or a newer release wrote it"
    ]
    assert [one.seq for one in entries(found)] == [3, 6, 8]


@pytest.mark.parametrize("damage", [b"", b"damaged\n", b"x" * 3 * SCANNED + b"\n"])
def test_the_last_entry_of_a_segment_is_found_from_its_end(node: Path, damage: bytes) -> None:
    path = node / open_name(1)
    lines = b"".join(line(seq, node.name) for seq in range(1, 5_001))
    path.write_bytes(b"x" * (len(lines) - 4 * SCANNED) + lines[-4 * SCANNED :] + damage)
    assert last_entry(path) == entry(5_000)
    with path.open("ab") as file:
        file.write(line(5_001, node.name)[:-4])
    assert last_entry(path) == entry(5_000)


def test_a_segment_without_an_entry_has_no_last_one(node: Path) -> None:
    path = node / open_name(1)
    for content in (b"", line(1)[:-1], b"damaged\n"):
        path.write_bytes(content)
        assert last_entry(path) is None


# --- a line of the journal is complete or it is damage


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
