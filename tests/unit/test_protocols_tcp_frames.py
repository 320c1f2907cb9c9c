"""Four digits and so many bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetime.protocols.tcp import BadFrame, Frames, frame


def test_a_frame_has_its_length_in_front() -> None:
    assert frame({"a": "é"}) == b'0010{"a":"\xc3\xa9"}'


def test_a_text_beyond_the_length_of_a_frame_is_refused() -> None:
    assert len(frame("x" * 9997)) == 10_003
    with pytest.raises(OverflowError):
        frame("x" * 9998)


@given(st.lists(st.text(min_size=1), min_size=1, max_size=5), st.integers(1, 7))
def test_frames_come_out_whole_however_they_come_in(texts: list[str], size: int) -> None:
    stream = b"".join(frame(text) for text in texts)
    frames = Frames()
    found = [one for at in range(0, len(stream), size) for one in frames.feed(stream[at : at + size])]
    assert b"".join(b"%04d%b" % (len(one), one) for one in found) == stream


@pytest.mark.parametrize("junk", [b"abcd", b"12 4", b"-001", b"0000", b"GET / HTTP/1.1", b"1x", b"\xff\xff\xff\xff"])
def test_a_length_that_is_none_ends_it(junk: bytes) -> None:
    with pytest.raises(BadFrame):
        list(Frames().feed(junk))


def test_frames_before_the_junk_are_given_first() -> None:
    found: list[bytes] = []

    def read() -> None:
        for one in Frames().feed(frame("first") + b"junk"):
            found.append(one)

    with pytest.raises(BadFrame):
        read()
    assert found == [b'"first"']
