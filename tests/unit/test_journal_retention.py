"""What becomes of sealed segments: they stay, are shipped, and go in time, but never before they were shipped."""

import json
import os
import pwd
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from duetime.journal.housekeeping import Shipper, close_dead_nodes, delete_old, shipped
from duetime.journal.options import JournalOptions
from duetime.journal.segments import LOCK, Lock, open_name, sealed_name
from duetime.model.errors import InvalidSettings

HOUR_S = 3600.0


def given_node(journal: Path, name: str, *ages_s: float, size: int = 100) -> Path:
    """Sealed segments of one entry each, as old as that."""
    node = journal / name
    node.mkdir(parents=True)
    for seq, age_s in enumerate(ages_s, 1):
        path = node / sealed_name(seq, seq)
        path.write_bytes(bytes([seq]) * size)
        at = path.stat().st_mtime - age_s
        os.utime(path, (at, at))
    return node


def firsts(node: Path) -> list[int]:
    return sorted(int(path.name[:12]) for path in node.glob("*.journal"))


def test_old_segments_go_and_young_ones_stay(tmp_path: Path) -> None:
    node = given_node(tmp_path, "here-1", 3 * HOUR_S, 2 * HOUR_S, 0.0)
    (node / open_name(4)).touch()
    options = JournalOptions(tmp_path, retention_s=HOUR_S)
    assert [path.name for path in delete_old(options, "here-1")] == [sealed_name(1, 1), sealed_name(2, 2)]
    assert firsts(node) == [3]
    assert (node / open_name(4)).exists()


def test_without_limits_everything_stays(tmp_path: Path) -> None:
    node = given_node(tmp_path, "here-1", 1e9)
    assert delete_old(JournalOptions(tmp_path), "here-1") == []
    assert firsts(node) == [1]


def test_the_oldest_of_all_nodes_go_first_when_there_is_too_much(tmp_path: Path) -> None:
    one = given_node(tmp_path, "here-1", 40.0, 20.0)
    other = given_node(tmp_path, "here-2", 30.0, 10.0)
    delete_old(JournalOptions(tmp_path, max_size=250), "here-1")
    assert (firsts(one), firsts(other)) == ([2], [2])


def test_a_node_that_may_still_be_written_is_not_deleted(tmp_path: Path) -> None:
    node = given_node(tmp_path, "there-1", 2 * HOUR_S)
    lock = Lock.acquire(node, create=True)
    assert lock
    options = JournalOptions(tmp_path, retention_s=HOUR_S)
    assert delete_old(options, "here-1") == []
    lock.release(ended=True)
    assert len(delete_old(options, "here-1")) == 1
    assert delete_old(options, "here-1") == []
    assert node.exists(), "somebody may be about to write there"
    os.utime(node, (1, 1))
    delete_old(options, "here-1")
    assert not node.exists()


def test_nothing_goes_before_it_was_shipped(tmp_path: Path) -> None:
    journal, copies = tmp_path / "journal", tmp_path / "copies"
    node = given_node(journal, "here-1", 2 * HOUR_S, 2 * HOUR_S)
    options = JournalOptions(journal, retention_s=HOUR_S, max_size=1, ship_to=str(copies))
    assert delete_old(options, "here-1") == []
    assert Shipper(options, "here-1").run_once() == 2
    assert len(delete_old(options, "here-1")) == 2
    assert firsts(node) == []
    assert firsts(copies / "here-1") == [1, 2]


# --- nodes of other users


def as_nobody(work: Callable[[], object]) -> object:
    """What `work` answers in a process of the user nobody, or the error that it raises, as JSON has it."""
    reading, writing = os.pipe()
    if not (child := os.fork()):
        try:
            user = pwd.getpwnam("nobody")
            os.setgid(user.pw_gid)
            os.setuid(user.pw_uid)
            answer = work()
        except BaseException as error:
            answer = repr(error)
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        found = pipe.read()
    os.waitpid(child, 0)
    return json.loads(found)


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that every user may write to."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
@pytest.mark.parametrize("mode", [0o755, 0o700])
def test_nodes_of_another_user_do_not_block_own_nodes(shared_folder: Path, mode: int) -> None:
    journal, copies = shared_folder / "journal", shared_folder / "copies"
    theirs = given_node(journal, "ended-1", 3 * HOUR_S)
    (theirs / LOCK).touch()
    given_node(journal, "ended-2", 3 * HOUR_S).chmod(mode)
    theirs.chmod(mode)
    journal.chmod(0o777)

    def keep_house() -> object:
        given_node(journal, "here-1", 2 * HOUR_S)
        (given_node(journal, "here-2", 0.0) / LOCK).touch()
        options = JournalOptions(journal, ship_to=str(copies), retention_s=HOUR_S, max_size=10_000)
        closed = close_dead_nodes(journal)
        return closed, Shipper(options, "here-1").run_once(), len(delete_old(options, "here-1"))

    assert as_nobody(keep_house) == [["here-2"], 3, 1]
    assert firsts(theirs) == firsts(journal / "ended-2") == [1]


# --- shipping


@pytest.fixture(params=["a folder", "another file system"])
def ship_to(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "copies") if request.param == "a folder" else f"memory://{tmp_path.name}"


def test_a_sealed_segment_is_copied_once_and_noted(tmp_path: Path, ship_to: str) -> None:
    node = given_node(tmp_path / "journal", "here-1", 0.0, 0.0)
    (node / open_name(3)).write_bytes(b"open")
    options = JournalOptions(tmp_path / "journal", ship_to=ship_to)
    shipper = Shipper(options, "here-1")
    assert shipper.run_once() == 2
    assert shipped(node) == {sealed_name(1, 1), sealed_name(2, 2)}
    assert (shipper.waiting, shipper.lag_s) == (0, 0.0)
    assert Shipper(options, "here-1").run_once() == 0
    found = shipper._system.find(shipper._root)
    assert [name.rpartition("/")[2] for name in sorted(found)] == [sealed_name(1, 1), sealed_name(2, 2)]


def test_a_copy_that_differs_is_made_again_and_one_that_stays_so_is_not_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, copies = tmp_path / "journal", tmp_path / "copies"
    node = given_node(journal, "here-1", HOUR_S)
    shipper = Shipper(JournalOptions(journal, ship_to=str(copies)), "here-1")
    (copies / "here-1").mkdir(parents=True)
    copy = copies / "here-1" / sealed_name(1, 1)
    copy.write_bytes(b"x" * 100)
    assert shipper.run_once() == 1
    assert copy.read_bytes() == (node / copy.name).read_bytes()

    (node / ".shipped").unlink()
    copy.unlink()
    monkeypatch.setattr(shipper._system, "put_file", lambda source, target: Path(target).write_bytes(b"y" * 100))
    with pytest.raises(OSError, match="differs"):
        shipper.run_once()
    assert shipped(node) == set()
    assert shipper.waiting == 1
    assert HOUR_S <= shipper.lag_s < 2 * HOUR_S


def test_nodes_that_ended_are_shipped_and_living_ones_of_others_are_not(tmp_path: Path) -> None:
    journal, copies = tmp_path / "journal", tmp_path / "copies"
    given_node(journal, "ended-1", 0.0)
    living = given_node(journal, "living-1", 0.0)
    lock = Lock.acquire(living, create=True)
    assert lock
    assert Shipper(JournalOptions(journal, ship_to=str(copies)), "here-1").run_once() == 1
    assert [path.name for path in copies.iterdir()] == ["ended-1"]
    lock.release(ended=True)


def test_an_unknown_place_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="journal_ship_to"):
        Shipper(JournalOptions(tmp_path, ship_to="nowhere://bucket"), "here-1")
