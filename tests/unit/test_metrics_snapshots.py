"""The numbers of several processes as one, and the memory of those that are gone."""

from hypothesis import given
from hypothesis import strategies as st

from duetime.metrics import snapshots
from duetime.metrics.meters import PER_QUEUE, Meters, Snapshot
from duetime.metrics.snapshots import EndedProcesses


def process(pushed: float = 0, *, queue: str = "q", parked: float = 0, ready: float = 0, late: float = 0.5) -> Snapshot:
    meters = Meters()
    labels = ("default", "ns", queue)
    meters.counter("pushed_total", "Jobs.", PER_QUEUE).of(*labels).value = pushed
    meters.level("parked", "Polls.").of().value = parked
    meters.level("jobs", "Jobs.", (*PER_QUEUE, "state"), shared=True).of(*labels, "ready").value = ready
    meters.spread("late_seconds", "Late.", PER_QUEUE, edges=(1, 10)).of(*labels).observe(late)
    return meters.snapshot()


def series(snapshot: Snapshot, name: str) -> dict[tuple[str, ...], list[float]]:
    return next((one.series for one in snapshot.readings if one.description.name == name), {})


def total(snapshot: Snapshot, name: str) -> float:
    return sum(value[0] for value in series(snapshot, name).values())


def test_a_snapshot_travels() -> None:
    one = process(3, parked=1)
    assert snapshots.decode(snapshots.encode(one)) == one


def test_counters_spreads_and_own_levels_add_up_shared_levels_do_not() -> None:
    merged = snapshots.merge([process(3, parked=1, ready=7, late=0.5), process(4, parked=2, ready=6, late=5)])
    assert total(merged, "pushed_total") == 7
    assert total(merged, "parked") == 3
    assert total(merged, "jobs") == 7
    assert series(merged, "late_seconds")["default", "ns", "q"] == [1, 1, 0, 5.5]


def test_merging_changes_nothing_that_it_was_given() -> None:
    one, other = process(3), process(4)
    snapshots.merge([one, other])
    assert (one, other) == (process(3), process(4))


def test_another_version_s_metric_of_the_same_name_is_left_out() -> None:
    meters = Meters()
    meters.counter("pushed_total", "Jobs.", ("pool",)).of("default").value = 100
    merged = snapshots.merge([process(3), meters.snapshot()])
    assert total(merged, "pushed_total") == 3


class CountingWorkers:
    """Workers that count, die and come back, as a ledger hears of them."""

    def __init__(self, max_queues: int = 1000) -> None:
        self.ledger = EndedProcesses(max_queues)
        self.counted: dict[str, dict[str, int]] = {}
        self._deaths: dict[str, int] = {}

    def count(self, worker: str, queue: str, jobs: int) -> None:
        counted = self.counted.setdefault(self._process(worker), {})
        counted[queue] = counted.get(queue, 0) + jobs

    def _process(self, worker: str) -> str:
        return f"{worker}, life {self._deaths.get(worker, 0)}"

    def scrape(self) -> Snapshot:
        self.ledger.keep(self.counted)
        for worker, counted in self.counted.items():
            told = snapshots.merge([process(jobs, queue=queue, parked=1) for queue, jobs in counted.items()])
            self.ledger.record(worker, snapshots.encode(told))
        return snapshots.decode(self.ledger.total())

    def kill(self, worker: str) -> None:
        self.counted.pop(self._process(worker), None)
        self._deaths[worker] = self._deaths.get(worker, 0) + 1


def test_what_the_dead_have_counted_stays_and_what_they_were_goes() -> None:
    workers = CountingWorkers()
    workers.count("1", "q", 5)
    workers.count("2", "q", 7)
    assert total(workers.scrape(), "pushed_total") == 12
    workers.kill("1")
    after = workers.scrape()
    assert (total(after, "pushed_total"), total(after, "parked"), total(after, "jobs")) == (12, 1, 0)
    workers.count("1", "q", 1)
    assert total(workers.scrape(), "pushed_total") == 13


def test_a_worker_that_does_not_answer_is_remembered_as_it_was() -> None:
    workers = CountingWorkers()
    workers.count("1", "q", 5)
    workers.scrape()
    workers.ledger.record("1, life 0", b"not a snapshot")
    assert total(snapshots.decode(workers.ledger.total()), "pushed_total") == 5


def test_queues_by_name_stop_at_the_limit_over_all_processes() -> None:
    workers = CountingWorkers(max_queues=2)
    for worker, queue in (("1", "a"), ("1", "b"), ("2", "c"), ("2", "d"), ("2", "a")):
        workers.count(worker, queue, 1)
    shown = {labels[1:]: value[0] for labels, value in series(workers.scrape(), "pushed_total").items()}
    assert shown == {("ns", "a"): 2, ("ns", "b"): 1, ("other", "other"): 2}
    jobs = series(workers.scrape(), "jobs")
    assert ("default", "other", "other", "ready") in jobs


WORKERS = st.sampled_from(["1", "2", "3"])
STEPS = st.one_of(
    st.tuples(st.just("count"), WORKERS, st.sampled_from("abcdef"), st.integers(1, 9)),
    st.tuples(st.just("kill"), WORKERS),
    st.tuples(st.just("scrape")),
)


@given(st.lists(STEPS, max_size=40))
def test_no_counter_ever_goes_backwards(steps: list[tuple[object, ...]]) -> None:
    workers = CountingWorkers(max_queues=3)
    before: dict[tuple[str, ...], list[float]] = {}
    for verb, *arguments in steps:
        if verb != "scrape":
            getattr(workers, str(verb))(*arguments)
            continue
        now = series(workers.scrape(), "pushed_total")
        assert all(now[labels][0] >= value[0] for labels, value in before.items())
        before = now
