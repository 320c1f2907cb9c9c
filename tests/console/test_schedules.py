"""The page Schedules: schedules are made, edited, run, paused and deleted, also without JavaScript."""

import uuid

import msgspec
import pytest

import duetime
from duetime.console.pages.schedules import cron_words
from duetime.wire.payload import TICKS
from tests.console.conftest import Visitor


@pytest.fixture
def name() -> str:
    return f"report-{uuid.uuid4().hex[:6]}"


def form(name: str, **fields: str) -> dict[str, str]:
    job = {"queue": "reports", "task": "", "body": '{"kind": "daily"}', "tries": "3", "ttl": "2 hours"}
    rules = {"missed": "none", "overlap": "skip", "priority": "high", "attributes": "team=ops"}
    when = {"when": "0 9 * * mon-fri", "tz": "Asia/Shanghai"}
    return {"namespace": "default", "name": name, "encoding": "text", **when, **rules, **job, **fields}


def test_a_schedule_is_made_run_paused_edited_and_deleted(boss: Visitor, client: duetime.Client, name: str) -> None:
    assert f"Saved schedule {name}" in boss.post("do/schedule", **form(name)).text
    made = client.schedules.get(name)
    assert made.schedule == "cron 0 9 * * mon-fri Asia/Shanghai"
    assert (made.missed, made.overlap, made.priority) == ("none", "skip", "high")
    assert (made.tries, made.ttl_ms, made.attributes) == (3, 7_200_000, {"team": "ops"})
    place = {"pool": "default", "namespace": "default", "name": name}
    assert "At 09:00 on Monday through Friday, Asia/Shanghai" in boss.get("schedules").text
    assert "runs now" in boss.post("do/run-schedule", **place).text
    [job] = client.queue("reports").reserve()
    assert msgspec.json.decode(job.body) == {"kind": "daily"}
    assert ">Running<" in boss.get("schedules").text
    client.ack(job)
    assert ">Done<" in boss.get("schedules").text
    assert "is paused" in boss.post("do/pause-schedule", **place).text
    assert client.schedules.get(name).paused
    assert f"{name} runs in" in boss.post("do/resume-schedule", **place).text
    shown = boss.get("schedule", **place).text
    assert 'value="0 9 * * mon-fri"' in shown
    assert "team=ops" in shown
    edited = form(name, edit="1", pool="default", when="every 90 minutes", task="shop.report", body='{"n": 1}')
    assert f"Saved schedule {name}" in boss.post("do/schedule", **edited).text
    changed = client.schedules.get(name)
    assert (changed.schedule, changed.task) == ("every 90m", "shop.report")
    assert "Deleted schedule" in boss.post("do/delete-schedule", **place).text
    assert name not in [one.name for one in client.schedules.list_schedules()]


def test_a_refused_schedule_keeps_all_fields_and_says_all_that_is_wrong(boss: Visitor, name: str) -> None:
    wrong = form(name, when="0 99 * * *", task="shop.report", body="[1, 2]", tries="many")
    answer = boss.post("do/schedule", **wrong)
    assert answer.status_code == 422
    assert answer.text.count('class="field-error"') == 3
    for kept in ('value="0 99 * * *"', "[1, 2]", 'value="many"', 'value="shop.report"', "team=ops", f'value="{name}"'):
        assert kept in answer.text
    assert boss.get("schedules").text.count(name) == 0


def test_a_new_schedule_does_not_replace_one_of_its_name(boss: Visitor, client: duetime.Client, name: str) -> None:
    boss.post("do/schedule", **form(name))
    answer = boss.post("do/schedule", **form(name, when="1h"))
    assert "There is already a schedule of this name." in answer.text
    assert client.schedules.get(name).schedule.startswith("cron")
    client.schedules.delete(name)


def test_a_span_of_the_past_is_backfilled(boss: Visitor, client: duetime.Client, name: str) -> None:
    place = {"pool": "default", "namespace": "default", "name": name}
    boss.post("do/schedule", **form(name, when="1h", queue=name, overlap="allow"))
    assert f"name={name}" in boss.get("schedules").text.partition("/console/backfill?")[2]
    assert "Pushes the runs" in boss.get("backfill", **place).text
    refused = boss.post("do/backfill", **place, since="soon", until="-1h").text
    assert 'class="field-error"' in refused
    assert 'value="-1h"' in refused
    assert "must not be in the future" in boss.post("do/backfill", **place, since="-3h", until="1h").text
    assert "pushed 3 of 3 runs" in boss.post("do/backfill", **place, since="-3h").text
    assert client.queue(name).status().counts.ready == 3
    assert "Backfill schedule" in boss.get("audit", find=name).text
    client.schedules.delete(name)


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("15m", "Next: "),
        ("0 9 * * mon-fri", "At 09:00 on Monday through Friday, UTC. Next: "),
        ("0 99 * * *", "cannot"),
    ],
)
def test_a_schedule_is_explained_while_it_is_typed(boss: Visitor, text: str, means: str) -> None:
    assert means in boss.get("schedule-means", when=text, tz="UTC").text


def test_a_viewer_and_another_namespace_cannot_change_schedules(
    boss: Visitor, client: duetime.Client, name: str
) -> None:
    boss.post("do/schedule", **form(name))
    password = "correct horse staple"
    boss.post("do/add-user", name=f"v-{name}", role="viewer", password=password)
    viewer = Visitor(boss.admin)
    with viewer.http:
        viewer.log_in(f"v-{name}", password)
        assert viewer.post("do/delete-schedule", pool="default", namespace="default", name=name).status_code == 403
        assert viewer.get("schedule").status_code == 403
    assert client.schedules.get(name).name == name
    client.schedules.delete(name)


def test_a_cron_expression_is_said_in_words() -> None:
    words = [cron_words(text) for text in ("cron 0 9 * * mon-fri Asia/Shanghai", "?", "cron x")]
    assert words == ["At 09:00 on Monday through Friday, Asia/Shanghai", "", ""]


TICK = b'{"schedule": "%s", "missed": "last", "queue": "q", "run_at": 1, "task": "t", "body": "%s"}'


@pytest.mark.parametrize(
    "body",
    [
        TICK % (b"cron " + b"1," * 200_000 + b"1 * * * * UTC", b"e30="),
        TICK % (b"cron " + b"1," * 2_000 + b"1 * * * * UTC", b"e30="),
        TICK % (b"every 1h", b"W10="),
        TICK.replace(b'"q"', b'"not a queue"') % (b"every 1h", b"e30="),
        b"[" * 100_000,
        b'{"task": 1, "schedule": 2}',
    ],
    ids=["long", "shorter", "no arguments", "no queue", "nested", "numbers"],
)
def test_a_tick_that_anybody_pushed_breaks_no_page(boss: Visitor, client: duetime.Client, body: bytes) -> None:
    queue = client.queue(TICKS)
    queue.push(body, id="odd", if_exists="replace", delay="1h")
    answer = boss.get("schedules")
    assert answer.status_code == 200
    assert answer.text.count("1,1,1") < 500
    assert "At " not in answer.text.partition("<main")[2].partition("odd")[2].partition("</tr>")[0]
    queue.cancel("odd")
