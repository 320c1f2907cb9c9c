"""The thread beside a SQLite file that does what no caller waits for."""

import threading

import pytest

from duetime.stores.sqlite.disk import BackgroundThread


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
