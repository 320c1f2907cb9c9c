"""Where the jobs of a group live."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from duetime.model.names import Queue
from duetime.stores.group.layout import Layouts, home, merge, read, without, write

QUEUE = Queue("shop", "mail")
IDS = [f"job-{n}" for n in range(3000)]


def test_homes_never_change() -> None:
    found = [home(QUEUE, job_id, ("a", "b", "c")) for job_id in IDS[:12]]
    assert "".join(found) == "aabacaacbaab"


def test_shares_are_even() -> None:
    shares = Counter(home(QUEUE, job_id, ("a", "b", "c")) for job_id in IDS)
    assert all(900 < share < 1100 for share in shares.values())


@given(st.sets(st.text("abcdef", min_size=1, max_size=3), min_size=1, max_size=6), st.text(min_size=1, max_size=20))
def test_a_new_member_moves_only_its_own_share(names: set[str], job_id: str) -> None:
    before = home(QUEUE, job_id, tuple(sorted(names)))
    after = home(QUEUE, job_id, tuple(sorted(names | {"new"})))
    assert after in {before, "new"}


def test_a_job_is_searched_at_its_home_and_then_at_earlier_homes() -> None:
    layouts = merge(("a", "b", "c"), [("a", "b"), ("a", "b", "c"), ("a",)])
    assert layouts.earlier == (("a",), ("a", "b"))
    for job_id in IDS[:100]:
        homes = layouts.homes(QUEUE, job_id)
        assert homes[0] == home(QUEUE, job_id, ("a", "b", "c"))
        assert set(homes) == {home(QUEUE, job_id, one) for one in (("a", "b", "c"), ("a", "b"), ("a",))}
        assert len(homes) == len(set(homes))


def test_a_member_that_is_empty_is_forgotten() -> None:
    layouts = merge(("a", "b"), [("a", "b", "c"), ("c",)])
    assert without(layouts, ["c"]) == Layouts(("a", "b"))


def test_layouts_are_read_as_they_were_written() -> None:
    layouts = merge(("a", "b"), [("a",)])
    assert list(read(write(layouts))) == [("a", "b"), ("a",)]
