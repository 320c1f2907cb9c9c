"""The reserve file beside a SQLite file: made longer before the log needs it, in a thread for which no push waits."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from duetime.client import connect
from duetime.stores.sqlite import disk
from duetime.stores.sqlite.disk import BackgroundThread, DiskReserve

KIB, MIB = 1024, 1_048_576
ONE_PUSH = 64 * KIB


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def background() -> Iterator[BackgroundThread]:
    thread = BackgroundThread()
    yield thread
    thread.close()


@pytest.fixture
def reserve(path: Path, background: BackgroundThread) -> DiskReserve:
    return DiskReserve(path, 64 * MIB, background)


def wait_for(background: BackgroundThread) -> None:
    done = threading.Event()
    assert background.hand_over(done.set)
    assert done.wait(60)


def reserve_file(path: Path) -> Path:
    return path.with_name(path.name + "-reserve")


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def log(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def make_log(path: Path, length: int) -> None:
    with log(path).open("ab") as file:
        file.truncate(length)


def look(reserve: DiskReserve) -> bool:
    """Whether a push that looks at the disk may go on at once."""
    reserve.check_next_push()
    return reserve.has_room()


class Gate:
    """Holds the thread that writes ahead before each block, until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_reached, self._is_open, draw = threading.Event(), threading.Event(), disk.rotated

        def wait_and_turn(block: bytes) -> bytes:
            if threading.current_thread() is not threading.main_thread():
                self.is_reached.set()
                assert self._is_open.wait(60)
            return draw(block)

        monkeypatch.setattr(disk, "rotated", wait_and_turn)

    def open(self) -> None:
        self._is_open.set()


def test_the_reserve_file_grows_before_the_log_needs_it(
    path: Path, reserve: DiskReserve, background: BackgroundThread
) -> None:
    assert not look(reserve), "the first reserve file is written before the first push"
    assert reserve.refusal() is None
    assert size(reserve_file(path)) == 128 * KIB

    make_log(path, 90 * KIB)
    for length in range(100 * KIB, 20 * MIB, 100 * KIB):
        assert look(reserve), f"a push waited for the reserve file at a log of {length // KIB} KiB"
        wait_for(background)
        make_log(path, length)
    assert size(reserve_file(path)) == 16 * MIB, "a quarter of the reserve"


def test_a_short_log_needs_nothing_ahead(path: Path, reserve: DiskReserve, background: BackgroundThread) -> None:
    make_log(path, 20 * KIB)
    assert reserve.refusal() is None
    assert look(reserve)
    wait_for(background)
    assert size(reserve_file(path)) == 128 * KIB


def test_a_push_waits_for_a_reserve_file_that_came_too_late(
    path: Path, reserve: DiskReserve, background: BackgroundThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    assert reserve.refusal() is None
    make_log(path, 100 * KIB)
    assert look(reserve)
    assert gate.is_reached.wait(60)
    make_log(path, 2 * MIB + 200 * KIB)
    assert not look(reserve), "the reserve file is smaller than the log"

    threading.Timer(0.05, gate.open).start()
    assert reserve.refusal() is None
    wait_for(background)
    assert size(reserve_file(path)) == 4 * MIB, "and both threads together wrote no more than that"


def test_a_reserve_file_that_is_deleted_is_not_written_on(
    path: Path, reserve: DiskReserve, background: BackgroundThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    make_log(path, 5 * MIB)
    assert reserve.refusal() is None
    make_log(path, 6 * MIB)
    assert look(reserve)
    assert gate.is_reached.wait(60)
    with reserve_file(path).open("rb") as before:
        threading.Timer(0.05, gate.open).start()
        assert reserve.release()
        wait_for(background)
        before.seek(0, 2)
        assert before.tell() < 9 * MIB, "the room of a deleted file comes back only when nobody writes to it"
    assert not reserve_file(path).exists()


def test_nothing_is_written_ahead_where_the_disk_has_no_room_for_it(
    path: Path, reserve: DiskReserve, background: BackgroundThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reserve.refusal() is None
    make_log(path, 100 * KIB)
    monkeypatch.setattr(reserve, "_free", lambda: 64 * MIB + 100)
    assert look(reserve)
    wait_for(background)
    assert size(reserve_file(path)) == 128 * KIB


def test_a_lone_caller_is_never_far_ahead_of_the_reserve_file(path: Path) -> None:
    """Previously a hundred pushes went without a look at the disk, however small the reserve file was."""
    with connect(f"sqlite://{path}?synchronous=OFF") as client:
        queue = client.queue("mail")
        queue.later("1h", b"x" * 100)  # before this one the log had what it takes to make a file
        for number in range(400):
            queue.later("1h", b"x" * 100)
            assert size(log(path)) <= size(reserve_file(path)) + ONE_PUSH, f"after {number + 1} pushes"


# --- the thread for work on a SQLite file that no caller waits for


def test_work_is_done_in_order_and_before_the_close() -> None:
    background, done = BackgroundThread(), list[int]()
    for number in range(100):
        assert background.hand_over(lambda number=number: done.append(number))
    background.close()
    assert done == list(range(100))
    assert not background.hand_over(lambda: done.append(-1))
    background.close()
    assert done == list(range(100))


def test_work_that_fails_does_not_end_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    background, done = BackgroundThread(), list[int]()
    background.hand_over(lambda: done.append(1 // 0))
    background.hand_over(lambda: done.append(2))
    background.close()
    assert done == [2]
    assert [record.message for record in caplog.records] == ["sqlite_background_work_failed"]


def test_a_system_that_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    background, done = BackgroundThread(), list[int]()

    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        assert not background.hand_over(lambda: done.append(1))
    assert background.hand_over(lambda: done.append(2)), "the next one is tried again"
    background.close()
    assert done == [2]


def test_no_thread_without_work() -> None:
    before = threading.active_count()
    background = BackgroundThread()
    assert threading.active_count() == before
    background.close()
