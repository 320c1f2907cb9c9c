"""The text of /metrics, read back by Prometheus's own parser."""

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from duetime.metrics.meters import Meters
from duetime.metrics.snapshots import render


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
