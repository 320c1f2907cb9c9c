"""The report as a page: which parts it has, and in which order a reader meets them."""

from markupsafe import Markup

from duetime.spark.report import charts
from duetime.spark.report.data import (
    LEFT,
    RIGHT,
    BatchLine,
    QueueBalance,
    QueueLine,
    Report,
    duration,
    moment,
    number,
    percent,
    short,
    span_of,
)
from duetime.spark.report.page import (
    Cell,
    Column,
    Term,
    Tile,
    chart,
    empty,
    equation,
    more,
    section,
    side_by_side,
    table,
    tiles,
    verdict,
    write_page,
)

MOST_ROWS = 50
"""How many rows a table shows; the others are counted below it."""


def write_report(report: Report) -> str:
    """The whole file."""
    body = [
        _verdict(report),
        tiles(_headlines(report)),
        _law(report),
        _lateness(report),
        _throughput(report),
        side_by_side(_retries(report), _reasons(report)),
        _slowest(report),
        _heat(report),
        _queues(report),
        _batches(report),
    ]
    period = span_of(report.period.start_at, report.period.end_at)
    return write_page(
        "Delayed jobs: what was promised, what was kept",
        f"{period}, {number(len(report.queues))} queue{'s' if len(report.queues) != 1 else ''}",
        body,
        footer=f"Written by Duetime at {moment(report.written_at)} UTC from the lake's tables stats and jobs. "
        "Percentiles come from KLL sketches (about 1 % rank error); counts are exact.",
    )


def _verdict(report: Report) -> Markup:
    missing = sum(abs(one.missing) for one in report.balances)
    total = sum(one.terms.get(word, 0) for one in report.balances for word in LEFT)
    named = {kind: count for kind, count in report.defects.items() if count}
    source = (
        f"Audited at {moment(report.audited_at)} UTC."
        if report.audited_at
        else "By the journal alone; duetime pipeline audit compares it with the store."
    )
    if missing or named:
        what = (
            ", ".join(f"{number(count)} {kind.replace('_', ' ')}" for kind, count in named.items())
            or f"{number(missing)} unexplained"
        )
        return verdict(
            "bad", f"The books do not balance: {what}", f"{source} Repair it with duetime pipeline reconcile."
        )
    if not total:
        return verdict(
            "warn", "No jobs in this period", "The lake has no job that was accepted, delivered or ended here."
        )
    return verdict("good", f"Nothing was lost: {number(total)} jobs accepted, {number(total)} accounted for", source)


def _headlines(report: Report) -> list[Tile]:
    whole, counts = report.whole, report.whole.counts
    delivered = counts.get("delivered", 0)
    is_late = whole.p99 is not None and whole.p99 > report.target_ms
    retries = counts.get("released", 0) + counts.get("lease_expired", 0)
    return [
        Tile("Accepted", short(counts.get("accepted", 0)), "jobs pushed", trend=_trend(report, "accepted")),
        Tile("Delivered", short(delivered), "to consumers", trend=_trend(report, "delivered")),
        Tile("Finished", short(counts.get("acked", 0)), "acked by consumers", trend=_trend(report, "acked")),
        Tile(
            "Lateness p99",
            duration(whole.p99),
            f"target {duration(report.target_ms)}, p50 {duration(whole.p50)}",
            "bad" if is_late else "good",
        ),
        Tile(
            "On time",
            _share(whole.on_time),
            f"within {duration(report.target_ms)} of due",
            "" if not is_late else "warn",
        ),
        Tile("Peak", short(report.peak), "deliveries in the busiest minute"),
        Tile("Retries", percent(retries, delivered), f"{number(retries)} of {number(delivered)} deliveries"),
        Tile(
            "Dead letters",
            short(counts.get("dead", 0)),
            percent(counts.get("dead", 0), delivered) + " of deliveries",
            "warn" if counts.get("dead") else "",
        ),
    ]


def _trend(report: Report, word: str) -> list[float]:
    return [float(point.counts.get(word, 0)) for point in report.points]


def _share(value: float | None) -> str:
    return "-" if value is None else percent(value, 1.0)


def _law(report: Report) -> Markup:
    words = (*LEFT, *RIGHT)
    total = QueueBalance("", "", {word: sum(one.terms.get(word, 0) for one in report.balances) for word in words})
    columns = [Column("queue", is_text=True), *(Column(word) for word in words), Column("balance")]
    ordered = sorted(report.balances, key=lambda one: (-abs(one.missing), -one.terms.get("accepted", 0), one.name))
    rows = [_law_row(one, one.name) for one in ordered[:MOST_ROWS]]
    return section(
        "The conservation law",
        "Every job that was accepted is somewhere: it waits, runs, is a dead letter, or ended in exactly one way.",
        _equation(total),
        table(columns, rows, total=_law_row(total, "all queues") if len(rows) > 1 else ()),
        _more(len(ordered)),
    )


def _equation(total: QueueBalance) -> Markup:
    left = [_term(word, total.terms[word], "left") for word in LEFT if total.terms[word] or word == "accepted"]
    right = [_term(word, total.terms[word], "") for word in RIGHT]
    if total.missing:
        right.append(_term("missing" if total.missing > 0 else "too many", abs(total.missing), "bad"))
    return equation(left, right)


def _term(word: str, count: int, tone: str) -> Term:
    return Term(word, number(count), tone or ("" if count else "zero"))


def _law_row(balance: QueueBalance, name: str) -> list[Cell]:
    cells = [Cell(number(balance.terms.get(word, 0))) for word in (*LEFT, *RIGHT)]
    missing = balance.missing
    state = (
        Cell("✓", "good")
        if not missing
        else Cell(f"{missing:+,} missing" if missing > 0 else f"{-missing:,} too many", "bad")
    )
    return [Cell(name), *cells, state]


def _lateness(report: Report) -> Markup:
    about = (
        f"How long after its due time a job was first delivered. Target: 99 of 100 within {duration(report.target_ms)}."
    )
    if all(point.p99 is None for point in report.points):
        return section("Lateness", about, empty("Nothing was delivered."))
    return section(
        "Lateness", about, chart("Lateness percentiles over time", charts.lateness_chart(report), height=330)
    )


def _throughput(report: Report) -> Markup:
    every = duration(report.period.step_ms).removeprefix("1 ")
    figure = chart("Jobs accepted, delivered and finished over time", charts.throughput_chart(report), height=300)
    return section("Throughput", f"Jobs per {every}: pushed, delivered, finished.", figure)


def _retries(report: Report) -> Markup:
    figure = charts.retries_chart(report)
    about = "Deliveries that did not end well, by what happened."
    drawn = (
        chart("Retries and dead letters over time", figure, height=290)
        if figure["data"]
        else empty("Every delivery was acked.")
    )
    return section("Retries", about, drawn)


def _reasons(report: Report) -> Markup:
    if not report.dead_reasons:
        return section("Dead letters by reason", "Why jobs were given up.", empty("There are none."))
    height = charts.height_for(len(report.dead_reasons), each=44)
    figure = chart("Dead letters by reason", charts.reasons_chart(report.dead_reasons), height=min(height, 290))
    return section("Dead letters by reason", "Why jobs were given up.", figure)


def _slowest(report: Report) -> Markup:
    late = [one for one in report.queues if one.p99 is not None]
    if not late:
        return section("Slowest queues", "", empty("Nothing was delivered."))
    figure = charts.slowest_chart(late, report.target_ms)
    height = charts.height_for(min(len(late), charts.TOP_QUEUES))
    return section(
        "Slowest queues", "By the 99th percentile of lateness.", chart("Slowest queues", figure, height=height)
    )


def _heat(report: Report) -> Markup:
    if not report.heat.rows:
        return section("When the work is done", "", empty("Nothing was delivered."))
    height = charts.height_for(len(report.heat.rows), each=30)
    figure = chart("Deliveries by time", charts.heat_chart(report.heat), height=height)
    return section("When the work is done", f"Deliveries by {report.heat.by} (UTC).", figure)


def _queues(report: Report) -> Markup:
    names = (
        "accepted",
        "delivered",
        "acked",
        "retries",
        "dead",
        "late p50",
        "late p95",
        "late p99",
        "on time",
        "run p50",
        "run p99",
    )
    columns = [Column("queue", is_text=True), *(Column(name) for name in names)]
    ordered = sorted(report.queues, key=lambda one: -one.counts.get("delivered", 0))
    rows = [_queue_row(one, report.target_ms) for one in ordered[:MOST_ROWS]]
    if not rows:
        return Markup("")
    return section("Queues", "", table(columns, rows), _more(len(ordered)), is_long=True)


def _queue_row(line: QueueLine, target_ms: int) -> list[Cell]:
    counts = line.counts
    retries = counts.get("released", 0) + counts.get("lease_expired", 0)
    is_late = line.p99 is not None and line.p99 > target_ms
    return [
        Cell(line.name),
        Cell(number(counts.get("accepted", 0))),
        Cell(number(counts.get("delivered", 0))),
        Cell(number(counts.get("acked", 0))),
        Cell(number(retries)),
        Cell(number(counts.get("dead", 0)), "warn" if counts.get("dead") else ""),
        Cell(duration(line.p50)),
        Cell(duration(line.p95)),
        Cell(duration(line.p99), "bad" if is_late else ""),
        Cell(_share(line.on_time)),
        Cell(duration(line.run_p50)),
        Cell(duration(line.run_p99)),
    ]


def _batches(report: Report) -> Markup:
    if not report.batches:
        return Markup("")
    names = ("jobs", "finished", "dead", "open", "done", "first due", "last due")
    columns = [Column("batch", is_text=True), Column("queue", is_text=True), *(Column(name) for name in names)]
    rows = [_batch_row(one) for one in report.batches[:MOST_ROWS]]
    about = "Bulk loads with jobs that fell due, were accepted or ended in the period."
    return section("Batches", about, table(columns, rows), _more(len(report.batches)), is_long=True)


def _batch_row(line: BatchLine) -> list[Cell]:
    return [
        Cell(line.batch),
        Cell(line.queue),
        Cell(number(line.jobs)),
        Cell(number(line.acked)),
        Cell(number(line.dead), "warn" if line.dead else ""),
        Cell(number(line.open)),
        Cell(percent(line.jobs - line.open, line.jobs)),
        Cell(moment(line.first_due_at)),
        Cell(moment(line.last_due_at)),
    ]


def _more(total: int) -> Markup:
    return more(number(total - MOST_ROWS)) if total > MOST_ROWS else Markup("")
