"""The numbers of several processes as one, and the memory of those that are gone."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from duetime.metrics import snapshots
from duetime.metrics.meters import PER_QUEUE, Meters, Snapshot
from duetime.metrics.snapshots import EndedProcesses, render


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


# --- the text of /metrics, read back by Prometheus's own parser


def parsed(meters: Meters) -> dict[str, Metric]:
    text = render(meters.snapshot()).decode()
    return {metric.name: metric for metric in text_string_to_metric_families(text)}


def test_counters_and_levels() -> None:
    meters = Meters()
    meters.counter("duetime_jobs_pushed_total", "Jobs.", ("pool",)).of("default").value += 3
    meters.level("duetime_parked_polls", "Polls.").of().value = 2.5
    found = parsed(meters)
    pushed, parked = found["duetime_jobs_pushed"], found["duetime_parked_polls"]
    assert (pushed.type, pushed.documentation) == ("counter", "Jobs.")
    assert [(one.name, one.labels, one.value) for one in pushed.samples] == [
        ("duetime_jobs_pushed_total", {"pool": "default"}, 3)
    ]
    assert (parked.type, [(one.labels, one.value) for one in parked.samples]) == ("gauge", [({}, 2.5)])


def test_a_spread_is_a_cumulative_histogram() -> None:
    meters = Meters()
    spread = meters.spread("duetime_job_lateness_seconds", "Late.", ("pool",), edges=(0.001, 0.5, 1)).of("default")
    for value in (0.0005, 0.001, 0.4, 7):
        spread.observe(value)
    metric = parsed(meters)["duetime_job_lateness_seconds"]
    samples = {(one.name.removeprefix(metric.name), one.labels.get("le")): one.value for one in metric.samples}
    assert metric.type == "histogram"
    assert samples == {
        ("_bucket", "0.001"): 2,
        ("_bucket", "0.5"): 3,
        ("_bucket", "1.0"): 3,
        ("_bucket", "+Inf"): 4,
        ("_sum", None): 7.4015,
        ("_count", None): 4,
    }


def test_no_value_of_a_label_breaks_the_text() -> None:
    evil = 'a"b\\c\nduetime_forged 1\n'
    meters = Meters()
    meters.counter("duetime_x_total", 'says "\\ \n', ("pool",)).of(evil).value += 1
    metric = parsed(meters)["duetime_x"]
    assert [one.labels for one in metric.samples] == [{"pool": evil}]
    assert len(render(meters.snapshot()).splitlines()) == 3


def test_names_without_total_stay_as_they_are() -> None:
    meters = Meters()
    meters.counter("infra_lmstfy_http_http_codes", "lmstfy").of().value += 1
    assert b"\ninfra_lmstfy_http_http_codes 1\n" in render(meters.snapshot())


def test_a_metric_without_series_still_has_its_name() -> None:
    meters = Meters()
    meters.counter("duetime_store_call_errors_total", "Errors.", ("pool",))
    assert b"# TYPE duetime_store_call_errors_total counter" in render(meters.snapshot())
