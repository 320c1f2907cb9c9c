"""The page of the pipeline reads what the pipelines leave in their lake (tests/spark writes and reads the same)."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from duetime.console.pipeline_files import find_report, local_lake
from tests.console.conftest import Visitor
from tests.console.visible_words import english_words
from tests.plugins.serving import Served, serving

RUN = "01M7KV5FANDJ5HR5YW29CZTDF2"
SCRIPT = "<script>alert(1)</script>"


def write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lake")
    write(folder / "batches/spring/_accepted", {"folder": "f", "files": [], "rows": 1200, "bad": 3, "at": 1})
    done = {"batch": "spring", "namespace": "shop", "rows": 1200, "accepted": 1190, "kept": 7, "bad": 3}
    write(folder / "batches/spring/_manifest", {**done, "files": 1, "epoch": "e", "finished_at": 1_794_000_000_000})
    write(folder / "batches/summer/_accepted", {"folder": "f", "files": [], "rows": 77, "bad": 0, "at": 1})
    write(folder / "batches/summer/_pushing", {"epoch": "e", "at": 1_794_000_000_000})
    for file, rows in (("before", 10), ("0", 30), ("1", 2)):
        write(folder / f"batches/summer/_progress/{file}", {"rows": rows})
    write(folder / "batches/summer/_progress/.2", '{"row')
    write(folder / "batches/torn/_accepted", '{"rows": 1')
    finding = {"kind": "lost", "namespace": "shop", "queue": "mail", "id": SCRIPT, "batch": None, "detail": "gone"}
    audit = {"run": RUN, "at": 1_794_000_000_000, "is_sound": False, "accepted": 4321, "found": {"lost": 2}}
    problems = [{"kind": "gap", "node": "node-7", "detail": "entries 5 to 9"}]
    write(folder / f"audit/{RUN}/summary.json", {**audit, "problems": problems, "findings": [finding]})
    (folder / "audit" / f"{RUN}Z").mkdir()  # a run that is under way
    counts = {"pushed": 2, "no_body": 1}
    write(folder / f"reconcile/{RUN}/summary.json", {"run": RUN, "dry_run": False, "lost": 3, "counts": counts})
    trouble = {"queue": "shop/mail", "start_at": 1, "worst_at": 2, "worst_ms": 90_000, "end_at": 0, "jobs": 12.4}
    forecast = {"written_at": 1, "start_at": 1_794_000_000_000, "step_ms": 60_000, "target_ms": 1000}
    loads = {"pending": [5, 0, 1], "expected": [0.4, 0, 2], "troubles": [trouble]}
    write(folder / f"forecast/{RUN}/summary.json", {**forecast, **loads})
    write(folder / "health.json", {"number": 4, "started_at": 1, "ended_at": 2, "ok": True, "steps": {}})
    write(folder / "reports/week.html", "<title>the week</title><script>1</script>")
    write(folder / "secret.html", "not a report")
    return folder


@pytest.fixture(scope="module")
def site(lake: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("pipeline")
    with serving(folder, "--dev", "--journal", "off", DUETIME_LAKE=str(lake)) as served:
        yield served
    assert "Traceback" not in served.log.read_text()


def test_batches_audit_reconcile_forecast_round_and_reports_are_shown(site: Served) -> None:
    page = httpx.get(f"{site.admin}/console/pipeline", timeout=60)
    assert page.status_code == 200
    for words in (
        "spring",
        "1,190",
        "Pushing",
        "42 of 77",
        "Not proved",
        "4,321 accepted jobs",
        "Lost: <strong>2</strong>",
        "node-7",
        "3 jobs were missing",
        "no body",
        "shop/mail",
        "1 m 30 s",
        "Round 4 ended",
        "week.html",
    ):
        assert words in page.text, words
    chinese = httpx.get(f"{site.admin}/console/pipeline", headers={"accept-language": "zh"}, timeout=60).text
    # What an audit found is told in the words of the audit.
    data = ("shop", "mail", "summer", "spring", "gone", "entries", "to", "node")
    assert english_words(chinese, *data) == set()
    assert SCRIPT not in page.text
    assert "torn" not in page.text


def test_a_report_is_served_in_a_sandbox_and_nothing_else_of_the_disk_is(site: Served, lake: Path) -> None:
    report = httpx.get(f"{site.admin}/console/report?name=week.html", timeout=60)
    assert "the week" in report.text
    assert report.headers["content-security-policy"].startswith("sandbox allow-scripts")
    (lake / "reports" / "link.html").symlink_to(lake / "secret.html")
    for name in ("../secret.html", "..%2Fsecret.html", "link.html", "%2Fetc%2Fpasswd", "", "none.html"):
        assert httpx.get(f"{site.admin}/console/report?name={name}", timeout=60).status_code == 404, name
    assert find_report(lake, "week.html") is not None


def test_without_a_lake_the_page_says_how_to_name_one(boss: Visitor) -> None:
    page = boss.get("pipeline")
    assert "DUETIME_LAKE" in page.text
    assert local_lake("s3a://bucket/lake") is None
    assert local_lake("file:///srv/lake") == Path("/srv/lake")
