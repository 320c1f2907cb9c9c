"""The page Failures: groups by what happened, newest first, and actions on exactly the jobs that they count."""

import json
import re
import uuid
from html import unescape
from urllib.parse import parse_qs, urlsplit

import pytest

import duetime
from duetime.console.errors_seen import ErrorName, fold_frames, name_error, quote_error
from tests.console.conftest import Visitor
from tests.plugins.until import until

TRACE = """Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/duetime/worker/execution.py", line 88, in run
    return task(*args)
  File "/app/shop/billing.py", line {line}, in charge
    gateway.charge(order)
{last}"""


@pytest.fixture
def place() -> dict[str, str]:
    return {"pool": "default", "namespace": "default", "queue": f"q{uuid.uuid4().hex[:12]}"}


def fail(client: duetime.Client, place: dict[str, str], errors: list[str], *, kill: bool = True) -> list[str]:
    """Jobs that failed with these errors, in this order; their ids."""
    queue = client.queue(place["queue"])
    ids: list[str] = []
    for number, error in enumerate(errors):
        ids.append(queue.push({"n": number}, tries=1, priority="high").id)
        job = queue.pop()
        assert job is not None
        assert job.id == ids[-1]
        if kill:
            client.kill(job, error=error)
        else:
            client.release(job, error=error)
    return ids


def groups(page: str) -> dict[str, str]:
    """The texts of the groups on a page with their keys."""
    table = page.rsplit("By error", maxsplit=1)[-1].split("Newest", maxsplit=1)[0]
    found = re.findall(r'<a class="row-link" href="([^"]+)">(.*?)</a>', table, re.DOTALL)
    return {
        re.sub(r"<[^>]+>", "", unescape(text)): parse_qs(urlsplit(unescape(address)).query)["group"][0]
        for address, text in found
    }


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (TRACE.format(line=3, last="ValueError: no order 52001"), ErrorName("ValueError", "ValueError: no order N")),
        (
            TRACE.format(line=3, last="shop.Timeout: no answer after 3.5 s\nto 10.0.0.7"),
            ErrorName("shop.Timeout", "shop.Timeout: no answer after N s"),
        ),
        (TRACE.format(line=3, last="KeyError"), ErrorName("KeyError", "KeyError")),
        ("smtp 550 mailbox of ann@example.com unavailable", ErrorName("", "smtp 550 mailbox of N unavailable")),
        ("MD01 order 52001 has no address", ErrorName("", "MD01 order N has no address")),
        ("ConnectionError: [Errno 111] refused", ErrorName("ConnectionError", "ConnectionError: [Errno 111] refused")),
        ("PHP Fatal: x in a.php:7\n#0 main", ErrorName("", "PHP Fatal: x in a.php:N")),
        ("", ErrorName("", "")),
        ("customer 297 has no VAT number", ErrorName("", "customer N has no VAT number")),
        ("gateway: answered 503", ErrorName("", "gateway: answered 503")),
    ],
)
def test_an_error_is_named_by_type_and_the_line_that_says_most(error: str, name: ErrorName) -> None:
    assert name_error(error) == name


def test_the_error_of_one_job_is_quoted_as_it_is() -> None:
    trace = TRACE.format(line=3, last="ValueError: no order 52001")
    assert quote_error(trace) == ErrorName("ValueError", "ValueError: no order 52001")
    assert quote_error("") == ErrorName("", "")


def test_frames_of_the_framework_are_folded() -> None:
    error = TRACE.format(line=3, last="ValueError: x")
    folded = fold_frames(error)
    assert folded.hidden == 1
    assert "execution.py" not in folded.text
    assert "billing.py" in folded.text
    assert fold_frames("plain\ntext") == ("plain\ntext", 0)


def test_tasks_are_grouped_by_cause_and_the_newest_comes_first(
    boss: Visitor, client: duetime.Client, place: dict[str, str]
) -> None:
    errors = [TRACE.format(line=n, last=f"ValueError: no order {52000 + n}") for n in range(5)]
    errors += [TRACE.format(line=7, last="KeyError: 'sku'")] * 2
    fail(client, place, [*errors, "NEW INCIDENT: no disk"])
    page = boss.get("failures", **place).text
    assert list(groups(page)) == ["NEW INCIDENT: no disk", "KeyError: 'sku'", "ValueError: no order N"]
    newest = page.split(">Newest<")[1]
    assert newest.index("NEW INCIDENT") < newest.index("KeyError") < newest.index("ValueError")
    shown = boss.get("failures", **place, group=groups(page)["ValueError: no order N"]).text
    assert "1 frame" not in shown
    assert "Show all frames, 1 is hidden" in shown


def test_a_group_s_action_is_previewed_and_acts_on_exactly_the_jobs_that_it_counts(
    boss: Visitor, client: duetime.Client, place: dict[str, str]
) -> None:
    """The same error with another reason is another group: 4 and 3 jobs, never 7."""
    queue = client.queue(place["queue"])
    killed = fail(client, place, ["no answer"] * 4)
    fail(client, place, ["no answer"] * 3, kill=False)
    page = boss.get("failures", **place).text
    keys = re.findall(r"verb=retry&(?:amp;)?.*?group=(\w+)", page) or re.findall(r"group=(\w+)", page)
    counts: dict[str, int] = {}
    for key in set(keys):
        preview = boss.get("failures-act", **place, verb="retry", group=key).text
        counts[key] = int(re.findall(r"<h1>Retry (\d+) job", preview)[0])
    assert sorted(counts.values()) == [3, 4]
    assert queue.status().counts.dead == 7
    [of_four] = [key for key, count in counts.items() if count == 4]
    done = boss.post("do/failures", **place, verb="retry", group=of_four).text
    assert "4 jobs queued for retry" in done
    assert (queue.status().counts.ready, queue.status().counts.dead) == (4, 3)

    [run] = re.findall(r'name="run" value="([^"]+)"', done)
    held = queue.pop()
    assert held is not None
    assert "Undone for 3 jobs" in boss.post("do/undo-bulk", run=run).text
    assert (queue.status().counts.ready, queue.status().counts.leased, queue.status().counts.dead) == (0, 1, 6)
    back = queue.get(next(one for one in killed if one != held.id))
    assert (back.state, back.reason, back.error) == ("dead", "killed", "no answer")


def test_what_died_after_the_preview_is_left_alone(
    boss: Visitor, client: duetime.Client, place: dict[str, str]
) -> None:
    queue = client.queue(place["queue"])
    fail(client, place, ["no answer"] * 2)
    preview = boss.get("failures-act", **place, verb="delete").text
    [until] = re.findall(r'name="until" value="(\d+)"', preview)
    fail(client, place, ["no answer"])
    assert "Deleted 2 failed jobs" in boss.post("do/failures", **place, verb="delete", until=until).text
    assert queue.status().counts.dead == 1


def test_chosen_failures_are_previewed_deleted_and_brought_back(
    boss: Visitor, client: duetime.Client, place: dict[str, str]
) -> None:
    queue = client.queue(place["queue"])
    first, second, third = fail(client, place, ["a", "b", "c"])
    chosen = [json.dumps(["default", "default", place["queue"], one]) for one in (first, second)]
    preview = boss.post("failures-act", verb="delete", which="chosen", job=chosen).text
    assert "Delete 2 failed jobs" in preview
    assert queue.status().counts.dead == 3
    done = boss.post("do/failures", verb="delete", job=chosen).text
    assert "Deleted 2 failed jobs" in done
    [run] = re.findall(r'name="run" value="([^"]+)"', done)
    boss.post("do/undo-bulk", run=run)
    assert {job.id: (job.error, job.body) for job in queue.list_jobs("dead").jobs} == {
        first: ("a", b'{"n":0}'),
        second: ("b", b'{"n":1}'),
        third: ("c", b'{"n":2}'),
    }
    assert "Select at least one job" in boss.post("failures-act", verb="delete", which="chosen", job=[]).text
    job = json.dumps(["default", "default", place["queue"], third])
    boss.post("do/failures", verb="retry", job=job)
    assert "any more" in boss.post("do/failures", verb="delete", job=job).text
    assert queue.get(third).state == "ready"


async def test_each_try_of_a_job_is_shown_with_its_error(
    boss: Visitor, remote: duetime.Client, place: dict[str, str]
) -> None:
    queue = remote.queue(place["queue"])
    job_id = queue.push({"n": 1}, tries=4).id
    for number in range(3):
        job = queue.pop()
        assert job is not None
        remote.release(job, error=f"ValueError: try {number} of many", delay="0s" if number < 2 else "1h")
    await until(lambda: all(f"try {n} of many" in boss.get("job", **place, id=job_id).text for n in range(3)))
    page = boss.get("job", **place, id=job_id).text
    assert ">Retrying<" in page
    assert "Try 4 of 4: due" in page
    listed = boss.get("jobs", **place, state="retrying").text
    assert job_id in listed
    assert "try 4 of 4" in listed
    assert "ValueError" in listed
    assert re.search(r'Retrying</span><span class="value">1<', boss.get("queue", **place).text)


def test_pages_go_back_from_the_newest(boss: Visitor, client: duetime.Client, place: dict[str, str]) -> None:
    ids = fail(client, place, [f"error {chr(97 + n % 3)}" for n in range(60)])
    first = boss.get("failures", **place).text
    assert ids[-1] in first
    assert ids[0] not in first
    [older] = re.findall(r'rel="next" href="([^"]+)"', first)
    second = boss.http.get(unescape(older)).text
    assert ids[0] in second
    assert ids[-1] not in second
    exported = boss.get("export-failures", **place).text.splitlines()
    assert len(exported) == 60
