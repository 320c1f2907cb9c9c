"""Writing the journal: groups, seals, failures, and what a successor makes of a dead node."""

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from duetime.journal import housekeeping, writer
from duetime.journal.events import Draft, Entry
from duetime.journal.housekeeping import close_dead_nodes
from duetime.journal.options import Fsync, JournalOptions
from duetime.journal.reader import Damage, read_journal, read_node
from duetime.journal.segments import LOCK, is_alive, open_name, segments
from duetime.journal.writer import NodeFiles, Writer
from duetime.model.job import Event
from tests.plugins.processes import guard, release

MUCH_S = 3600.0


def draft(number: int) -> Draft:
    return Draft(ts=number, event=Event.ACCEPTED, id=f"j{number}", body="x" * 100)


def options(folder: Path, **more: object) -> JournalOptions:
    return JournalOptions(folder, **{"instance": "here", "segment_age_s": MUCH_S, "reserve": 0, **more})


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def written(journal: Path) -> Iterator[Writer]:
    """An open writer; whoever wants to see its end closes it."""
    one = Writer(options(journal))
    one.open()
    yield one
    one.close()


def names(journal: Path) -> list[str]:
    return [segment.path.name for node in journal.iterdir() for segment in segments(node)]


def ids(journal: Path) -> list[str]:
    items = list(read_journal(journal))
    assert all(isinstance(item, Entry) for item in items), items
    assert [item.seq for item in items] == list(range(1, len(items) + 1))
    return [item.id or item.event for item in items]


def test_flushed_entries_are_readable_while_the_node_lives(written: Writer, journal: Path) -> None:
    written.append([draft(1), draft(2)], write_soon=True)
    written.flush()
    assert ids(journal) == ["j1", "j2"]
    assert names(journal) == [open_name(1)]
    assert is_alive(journal / written.node)


def test_a_clean_end_is_on_record_and_leaves_no_lock(written: Writer, journal: Path) -> None:
    written.append([draft(1)], write_soon=True)
    written.close()
    assert ids(journal) == ["j1", "closed"]
    assert names(journal) == ["000000000001-000000000002.journal"]
    assert not (journal / written.node / LOCK).exists()
    assert close_dead_nodes(journal) == []


def test_entries_without_a_waiting_caller_are_written_soon(written: Writer, journal: Path) -> None:
    written.append([draft(1)], write_soon=True)
    tail = journal / written.node / open_name(1)
    while not tail.exists() or not tail.stat().st_size:
        threading.Event().wait(0.005)
    assert ids(journal) == ["j1"]


@pytest.mark.parametrize("mode", list(Fsync))
def test_many_threads_share_groups_and_seq_has_no_gaps(journal: Path, mode: Fsync) -> None:
    one = Writer(options(journal, fsync=mode, interval_s=0.01, segment_size=10_000))
    one.open()

    def produce(name: int) -> None:
        for number in range(50):
            one.append([draft(1000 * name + number), draft(1000 * name + number)], write_soon=True)
            one.flush()

    threads = [threading.Thread(target=produce, args=[name]) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    one.close()
    found = ids(journal)
    assert len(found) == 801
    assert sorted(set(found[:-1])) == sorted(f"j{1000 * name + number}" for name in range(8) for number in range(50))
    assert one.entries == 801
    assert len(names(journal)) > 5


def test_segments_are_sealed_at_their_size(journal: Path) -> None:
    one = Writer(options(journal, segment_size=1000))
    one.open()
    for number in range(10):
        one.append([draft(number)], write_soon=True)
        one.flush()
    one.close()
    sizes = [segment.path.stat().st_size for node in journal.iterdir() for segment in segments(node)]
    assert all(size < 1500 for size in sizes)
    assert len(sizes) >= 3


def test_segments_are_sealed_at_their_age_also_if_nothing_more_comes(journal: Path) -> None:
    one = Writer(options(journal, segment_age_s=0.02))
    one.open()
    one.append([draft(1)], write_soon=True)
    while names(journal) != ["000000000001-000000000001.journal"]:
        threading.Event().wait(0.005)
    one.close()


@pytest.mark.parametrize(("mode", "calls"), [(Fsync.ALWAYS, 3), (Fsync.INTERVAL, 0), (Fsync.OFF, 0)], ids=str)
def test_the_mode_decides_when_a_sync_is_awaited(
    journal: Path, monkeypatch: pytest.MonkeyPatch, mode: Fsync, calls: int
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(writer.os, "fdatasync", synced.append)
    one = Writer(options(journal, fsync=mode, interval_s=MUCH_S))
    one.open()
    for number in range(3):
        one.append([draft(number)], write_soon=True)
        one.flush()
    assert len(synced) == calls
    one.close()


def test_the_interval_comes_round(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = threading.Event()
    monkeypatch.setattr(writer.os, "fdatasync", lambda handle: synced.set())
    one = Writer(options(journal, fsync=Fsync.INTERVAL, interval_s=0.01))
    one.open()
    one.append([draft(1)], write_soon=True)
    assert synced.wait(20)
    one.close()


def test_a_sync_that_failed_is_tried_again(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []
    again = threading.Event()

    def sync(handle: int) -> None:
        tries.append(handle)
        if len(tries) == 1:
            raise OSError(errno.EIO, "Input/output error")
        again.set()

    monkeypatch.setattr(writer.os, "fdatasync", sync)
    one = Writer(options(journal, fsync=Fsync.INTERVAL, interval_s=0.01))
    one.open()
    one.append([draft(1)], write_soon=True)
    assert again.wait(60)
    one.close()


# --- a disk that fails


class BadDisk:
    """The writer's disk: writes half of what it gets, and then fails, while it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failing = False
        self.error: Exception = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._write = os.write
        monkeypatch.setattr(writer.os, "write", self.write)

    def write(self, handle: int, data: bytes) -> int:
        if not self.failing:
            return self._write(handle, data)
        if len(data) > 100:
            return self._write(handle, data[:100])
        raise self.error


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> BadDisk:
    monkeypatch.setattr(writer, "RETRY_S", 0.01)
    return BadDisk(monkeypatch)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), MemoryError("No space")])
def test_a_failed_group_is_reported_and_written_later_without_a_gap(
    written: Writer, journal: Path, disk: BadDisk, error: Exception
) -> None:
    written.append([draft(1)], write_soon=True)
    written.flush()
    disk.error, disk.failing = error, True
    for number in (2, 3):
        written.append([draft(number)], write_soon=True)
        with pytest.raises(type(error), match="No space"):
            written.flush()
    assert written.failure
    assert written.backlog > 0
    assert ids(journal) == ["j1"], "half a group was cut off again"
    disk.failing = False
    written.append([draft(4)], write_soon=True)
    written.flush()
    assert (written.failure, written.backlog) == (None, 0)
    assert ids(journal) == ["j1", "j2", "j3", "j4"]


def test_a_failed_sync_counts_as_not_written(written: Writer, journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "RETRY_S", 0.01)
    really = os.fdatasync
    broken = [True]

    def sync(handle: int) -> None:
        if broken[0]:
            raise OSError(errno.EIO, "the disk is dying")
        really(handle)

    written.append([draft(1)], write_soon=True)
    written.flush()
    monkeypatch.setattr(writer.os, "fdatasync", sync)
    written.append([draft(2)], write_soon=True)
    with pytest.raises(OSError, match="dying"):
        written.flush()
    broken[0] = False
    written.append([draft(3)], write_soon=True)
    written.flush()
    assert ids(journal) == ["j1", "j2", "j3"]
    assert len(names(journal)) == 2, "nobody knows what the old file holds: it is closed"


def test_what_cannot_be_written_at_the_end_is_left_to_a_successor(
    journal: Path, disk: BadDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "CLOSE_S", 0.05)
    one = Writer(options(journal))
    one.open()
    one.append([draft(1)], write_soon=True)
    one.flush()
    disk.failing = True
    one.append([draft(2)], write_soon=True)
    one.close()
    disk.failing = False
    assert close_dead_nodes(journal) == [one.node]
    assert ids(journal) == ["j1", "closed"]


def test_an_error_of_one_waiter_does_not_delay_others(written: Writer, journal: Path) -> None:
    class Broken(Future[None]):
        def set_result(self, result: None) -> None:
            raise ValueError("a bug")

    written.append([draft(1)], write_soon=True)
    written.flush_to(Broken())
    written.append([draft(2)], write_soon=True)
    second: Future[None] = Future()
    written.flush_to(second)
    second.result(60)
    written.append([draft(3)], write_soon=True)
    written.flush()
    assert ids(journal) == ["j1", "j2", "j3"]


def test_a_writer_whose_thread_cannot_be_started_is_not_open(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    one = Writer(options(journal))
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(OSError, match="can't start new thread"):
            one.open()
    assert not one.is_open
    assert close_dead_nodes(journal) == [one.node]


def test_the_folder_reports_free_space(written: Writer, journal: Path) -> None:
    stat = os.statvfs(journal)
    assert abs(written.free - stat.f_bavail * stat.f_frsize) < 2**30, "others use the same disk meanwhile"
    assert written.free > 0


# --- a process that died


def given_dead_node(journal: Path, lines: int, torn: bytes = b"") -> Path:
    """What kill -9 leaves: an open segment, maybe with half a line, and a lock that nobody holds."""
    one = Writer(options(journal))
    one.open()
    one.append([draft(number) for number in range(1, lines + 1)], write_soon=True)
    one.flush()
    node = journal / one.node
    content = (node / open_name(1)).read_bytes()
    one.close()
    for segment in segments(node):
        segment.path.unlink()
    (node / open_name(1)).write_bytes(content + torn)
    (node / LOCK).touch()
    return node


def test_a_successor_seals_at_the_last_valid_line_and_closes(journal: Path) -> None:
    node = given_dead_node(journal, 3, torn=b"0123456789abcdef {half a li")
    assert close_dead_nodes(journal) == [node.name]
    assert ids(journal) == ["j1", "j2", "j3", "closed"]
    [*_, closed] = read_node(node)
    assert isinstance(closed, Entry)
    assert (closed.node, closed.reason) == (node.name, "successor")
    assert names(journal) == ["000000000001-000000000004.journal"]
    assert close_dead_nodes(journal) == []


def test_a_successor_cuts_at_every_place(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping.os, "fsync", lambda handle: None)
    node = given_dead_node(journal, 2)
    content = (node / open_name(1)).read_bytes()
    for cut in range(len(content)):
        for segment in segments(node):
            segment.path.unlink()
        (node / open_name(1)).write_bytes(content[:cut])
        (node / LOCK).touch()
        assert close_dead_nodes(journal) == [node.name]
        whole = content[:cut].count(b"\n")
        assert ids(journal) == [*(f"j{number}" for number in range(1, whole + 1)), "closed"]


def test_damage_in_the_middle_stays_for_readers(journal: Path) -> None:
    node = given_dead_node(journal, 3)
    content = bytearray((node / open_name(1)).read_bytes())
    content[5] ^= 1
    (node / open_name(1)).write_bytes(content)
    close_dead_nodes(journal)
    items = list(read_node(node))
    assert isinstance(items[0], Damage)
    assert [item.seq for item in items if isinstance(item, Entry)] == [2, 3, 4]


FORKING = """
import os, sys, time
from pathlib import Path
from duetime.journal.options import JournalOptions
from duetime.journal.writer import Writer

Writer(JournalOptions(Path(sys.argv[1]), reserve=0)).open()
child = os.fork()
if not child:
    print(os.getpid(), flush=True)
time.sleep(600)
"""


def test_a_node_ends_with_its_process_although_a_forked_child_lives(journal: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", FORKING, str(journal)], stdout=subprocess.PIPE, text=True)
    guard(parent.pid)
    assert parent.stdout
    child = int(parent.stdout.readline())
    guard(child)
    try:
        [node] = journal.iterdir()
        assert is_alive(node)
        parent.kill()
        parent.wait()
        assert not is_alive(node)
        assert close_dead_nodes(journal) == [node.name]
    finally:
        os.kill(child, signal.SIGKILL)
        parent.stdout.close()
        release(parent.pid)
        release(child)


def test_a_living_node_is_left_alone(written: Writer, journal: Path) -> None:
    written.append([draft(1)], write_soon=True)
    written.flush()
    assert close_dead_nodes(journal) == []
    assert names(journal) == [open_name(1)]


def test_a_node_that_died_between_its_end_and_its_lock_is_not_closed_twice(written: Writer, journal: Path) -> None:
    written.append([draft(1)], write_soon=True)
    written.close()
    (journal / written.node / LOCK).touch()
    close_dead_nodes(journal)
    assert ids(journal) == ["j1", "closed"]


def test_a_node_without_any_entry_is_closed_with_its_first(journal: Path) -> None:
    NodeFiles.create(journal, "here-1", durable=True).leave_to_successor()
    assert close_dead_nodes(journal) == ["here-1"]
    assert ids(journal) == ["closed"]
