import json
import re
import subprocess
import time
import uuid
from html import unescape
from pathlib import Path

import httpx
import pytest

import duetime
from duetime.client.client import QueueClient
from duetime.console.formats import body_text, colored
from duetime.model.clock import SystemClock
from duetime.model.errors import LeaseLost
from duetime.model.job import State
from tests.console.conftest import ACCOUNT, Visitor
from tests.plugins.growth import LINEAR, growth
from tests.plugins.serving import COMMAND, Served
from tests.plugins.until import until

SCRIPT = "<script>alert(1)</script>"


@pytest.fixture
def place() -> dict[str, str]:
    """A queue of the test's own, as forms and addresses name it."""
    return {"pool": "default", "namespace": "default", "queue": f"q{uuid.uuid4().hex[:12]}"}


def test_a_queue_is_paused_and_purged_after_its_name_was_typed(
    boss: Visitor, client: duetime.Client, place: dict[str, str]
) -> None:
    queue = client.queue(place["queue"])
    queue.push("x")
    queue.later("1h", "y")

    assert "Paused default" in boss.post("do/pause", **place).text
    assert queue.status().rules.paused
    assert "Resumed default" in boss.post("do/resume", **place).text
    assert not queue.status().rules.paused
    assert "Nothing was deleted" in boss.post("do/purge", **place, state="ready", confirm="wrong").text
    assert queue.status().counts.total == 2
    assert "Deleted 1 job" in boss.post("do/purge", **place, state="ready", confirm=place["queue"]).text
    assert queue.status().counts.delayed == 1
    boss.post("do/rules", **place, max_jobs="7", strict="on")
    assert (queue.status().rules.max_jobs, queue.status().rules.strict) == (7, True)


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_a_body_of_deeply_nested_json_is_shown_as_it_is(opening: str) -> None:
    depth, closing = 400, {"[": "]", '{"a":': "}"}[opening]
    text = opening * depth + "[" + ",".join("1" * 30_000) + "]" + closing * depth
    assert body_text(text.encode()) == ("JSON", text)
    assert growth(lambda inner: body_text(f"{opening * 50}[{inner}1]{closing * 50}".encode()), "1,") < LINEAR


def test_json_is_coloured_and_stays_the_same_text() -> None:
    text = body_text(rb'{"a<b": ["x \"y\" <z>", 1e5, null, -12.50], "\u8bd5": {}}')[1]
    coloured = colored("JSON", text)
    assert unescape(re.sub(r"<[^>]*>", "", coloured)) == text
    assert '<span class="json-key">&#34;a&lt;b&#34;</span>:' in coloured
    assert re.findall('json-value">([^<]*)<', coloured) == ["1e5", "null", "-12.50"]
    assert colored("text", "<b>") == "&lt;b&gt;"


def test_a_search_text_has_a_bounded_length(boss: Visitor, client: duetime.Client, place: dict[str, str]) -> None:
    client.queue(place["queue"]).push("x" * 1000)
    assert "at most 1,000 characters" in boss.get("jobs", **place, state="ready", text="x" * 1001).text
    assert "at most 1,000 characters" not in boss.get("jobs", **place, state="ready", text="x" * 1000).text


def test_queues_are_listed_by_name_or_by_what_is_largest(
    boss: Visitor, client: duetime.Client, place: dict[str, str]
) -> None:
    part = place["queue"]
    for name, jobs in (("a", 1), ("b", 3), ("c", 2)):
        client.queue(f"{part}-{name}").bulk(["x"] * jobs)

    def listed(**query: str) -> list[str]:
        return re.findall(rf"{part}-([abc])</a>", boss.get("queues", find=part, **query).text)

    assert listed() == ["a", "b", "c"]
    assert "3 queues" in boss.get("queues", find=part).text
    assert listed(sort="ready") == ["b", "c", "a"]
    assert listed(page="7") == ["a", "b", "c"]


def test_rates_follow_what_the_server_takes(boss: Visitor, console_server: Served, place: dict[str, str]) -> None:
    with httpx.Client(base_url=console_server.admin, auth=ACCOUNT) as admin:
        token = admin.post("/token/default", data={"description": "rates"}).json()["token"]
    address = f"{console_server.api}/v1/queues/default/{place['queue']}/batch"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:  # a page compares with some seconds ago, and may come later than that
        httpx.post(
            address, json={"jobs": [{"body": "x"}] * 10}, headers={"x-token": token}, timeout=60
        ).raise_for_status()
        page = boss.get("queue", **place).text
        [accepted] = re.findall(r'In /s</span><span class="value">([\d.,]+)', page)
        if float(accepted.replace(",", "")) > 0:
            return
    raise AssertionError("no page showed a rate")


def test_the_due_chart_leads_to_the_jobs_of_a_bar(boss: Visitor, client: duetime.Client, place: dict[str, str]) -> None:
    queue = client.queue(place["queue"])
    minute = SystemClock().now_ms() // 60_000  # due within one minute of the clock, whenever the test runs
    for minutes in (5, 30, 30):
        queue.push(f"due in {minutes}", due_at=(minute + minutes) * 60_000 + 30_000)

    page = boss.get("queue", **place).text
    bars = re.findall(r'<a href="(/console/jobs[^"]+)" aria-label="[^"]+: (\d+)"', page)
    assert sorted(count for _, count in bars) == ["1", "2"]
    [address] = [unescape(address) for address, count in bars if count == "2"]
    shown = boss.http.get(address).text
    assert shown.count("due in 30") == 2
    assert "due in 5" not in shown


def test_jobs_of_any_state_are_filtered_by_when_they_were_due(
    boss: Visitor, client: duetime.Client, place: dict[str, str]
) -> None:
    queue, now = client.queue(place["queue"]), SystemClock().now_ms()
    for hours in (1, 2, 3):
        queue.push(f"due {hours} h ago", due_at=now - hours * 3_600_000)

    span = {"since": str(now - 9_000_000), "until": str(now - 5_400_000)}
    page = boss.get("jobs", **place, state="ready", **span).text
    assert [hours for hours in (1, 2, 3) if f"due {hours} h ago" in page] == [2]
    assert "1 match in the first 3 of 3" in page


async def test_a_job_is_found_by_its_id_in_any_queue_and_shown_with_its_time_line(
    boss: Visitor, client: duetime.Client, place: dict[str, str]
) -> None:
    queue = client.queue(place["queue"])
    job_id = f"find/{uuid.uuid4().hex} <b>"
    boss.post(
        "do/push", **place, id=job_id, body=f'{{"n": 12345678901234567890, "x": "{SCRIPT}"}}', tries="3", when="1h"
    )
    assert queue.get(job_id).tries == 3

    page = boss.get("search", q=job_id)
    assert page.url.path == "/console/job"
    assert "12345678901234567890" in page.text
    assert SCRIPT not in page.text
    assert "Accepted" in page.text

    assert "is due at" in boss.post("do/run-now", **place, id=job_id).text
    assert queue.get(job_id).state == "ready"
    boss.post("do/reschedule", **place, id=job_id, when="2h")
    assert queue.get(job_id).due_at > SystemClock().now_ms() + 3_600_000
    boss.post("do/reschedule", **place, id=job_id, when="2099-01-01T00:00:00-05:00")
    assert queue.get(job_id).due_at == 4_070_926_800_000
    assert "Give a time" in boss.post("do/reschedule", **place, id=job_id, when=" ").text
    assert "give 1795236220000" in boss.post("do/reschedule", **place, id=job_id, when="1795236220").text
    assert queue.get(job_id).due_at == 4_070_926_800_000
    assert "Deleted job" in boss.post("do/cancel", **place, id=job_id).text
    assert boss.get("job", **place, id=job_id).status_code == 200
    # Only a push waits for the journal; other events are written soon after.
    await until(lambda: ">Deleted<" in boss.get("job", **place, id=job_id).text)
    assert boss.get("search", q=job_id).url.path == "/console/job"  # found in the journal


def test_a_leased_job_is_taken_from_its_consumer(boss: Visitor, client: duetime.Client, place: dict[str, str]) -> None:
    queue = client.queue(place["queue"])
    job_id = queue.push("x").id
    held = queue.pop()
    assert held is not None

    assert "waits to be tried again" in boss.post("do/release", **place, id=job_id).text
    assert queue.get(job_id).state == "ready"
    with pytest.raises(LeaseLost):
        client.ack(held)


def test_a_job_is_edited_under_its_id_and_cloned_under_another(
    boss: Visitor, client: duetime.Client, place: dict[str, str]
) -> None:
    queue = client.queue(place["queue"])
    job_id = queue.later("1h", b"\xff\x00\r\n", attributes={"color": "red"}).id

    form = boss.get("new", **place, id=job_id, mode="edit").text
    assert "base64" in form
    assert "color=red" in form
    boss.post("do/push", **place, mode="edit", id=job_id, body="line\r\ntwo", encoding="text", tries="1", when="1h")
    assert queue.get(job_id).body == b"line\ntwo"
    clone = boss.post("do/push", **place, mode="clone", body="again", encoding="text", tries="1")
    assert clone.url.params["id"] != job_id
    assert queue.get(clone.url.params["id"]).body == b"again"
    assert re.search(
        rf"{job_id}</td><td[^>]*>body 4 bytes \w+ -&gt; 8 bytes \w+, [^<]*tries 5 -&gt; 1", boss.get("audit").text
    )
    refused = boss.post("do/push", **place, id=job_id, body="x", tries="1")
    assert queue.get(job_id).body == b"line\ntwo"
    assert "already" in refused.text or "exists" in refused.text


def test_json_is_formatted_for_editing_when_asked_for(
    boss: Visitor, client: duetime.Client, place: dict[str, str]
) -> None:
    queue = client.queue(place["queue"])
    job_id = queue.later("1h", b'{"a":[1.50],"b":2}').id
    form = boss.get("new", **place, id=job_id, mode="edit").text
    assert '{"a":[1.50],"b":2}</textarea>' in unescape(form)  # a signature covers white space, too
    [link] = re.findall(r'href="([^"]+)">Format JSON<', form)
    formatted = boss.http.get(unescape(link)).text
    assert '"a": [\n    1.50\n  ],' in unescape(formatted)
    assert "Format JSON" not in formatted
    text = queue.later("1h", "{no json").id
    assert "Format JSON" not in boss.get("new", **place, id=text, mode="edit").text


def test_a_job_that_is_edited_expires_when_it_would_have(
    boss: Visitor, client: duetime.Client, place: dict[str, str]
) -> None:
    queue = client.queue(place["queue"])
    job_id = queue.later("1h", "x", ttl="2h").id
    expires_at = queue.get(job_id).expires_at

    form = boss.get("new", **place, id=job_id, mode="edit").text
    fields = dict(re.findall(r'<input name="(\w+)" (?:inputmode="\w+" )?value="([^"]*)"', form))
    boss.post("do/push", **place, mode="edit", body="y", **fields)
    edited = queue.get(job_id)
    assert edited.body == b"y"
    assert expires_at <= edited.expires_at < expires_at + 60_000


def test_the_log_says_what_a_change_of_rules_changed(
    boss: Visitor, client: duetime.Client, place: dict[str, str]
) -> None:
    client.queue(place["queue"]).push("x")
    boss.post("do/rules", **place, max_jobs="7", strict="on")
    boss.post("do/rules", **place, max_jobs="9", strict="on")

    log = re.findall(
        rf"<td>boss</td><td[^>]*>Change queue settings</td><td[^>]*>default/{place['queue']}</td><td[^>]*>(.*?)</td>",
        boss.get("audit").text,
    )
    assert [unescape(one) for one in log] == ["max_jobs 7 -> 9", "strict no -> yes, max_jobs 0 -> 7"]


def test_an_action_on_a_filter_is_counted_first_and_done_for_what_fits(
    boss: Visitor, client: duetime.Client, place: dict[str, str]
) -> None:
    queue = client.queue(place["queue"])
    for number in range(6):
        queue.later("1h", {"shop": "a" if number % 2 else "b"}, attributes={"n": str(number)})
    fit = {**place, "state": "delayed", "text": '"shop":"a"'}

    assert "3 jobs match" in boss.get("bulk", **fit, verb="cancel").text
    assert queue.status().counts.delayed == 6
    exported = boss.get("export", **fit).text
    assert [json.loads(line)["body"]["shop"] for line in exported.splitlines()] == ["a"] * 3
    assert "3 of 3" in boss.post("do/bulk", **fit, verb="cancel").text
    assert queue.status().counts.delayed == 3
    page = boss.get("jobs", **place, state="delayed", attribute="n=2").text
    assert "1 match in the first" in page
    assert "all jobs that match the filter" in page
    # Ticked rows do not matter if all that match were chosen.
    all_of_it = boss.post("bulk", **place, state="delayed", attribute="n=2", verb="cancel", id="none", all="on").text
    assert "Delete 1 job" in all_of_it
    assert "all 3 jobs of this state" in boss.get("jobs", **place, state="delayed").text


def test_attributes_of_the_listed_jobs_are_filters(
    boss: Visitor, client: duetime.Client, place: dict[str, str]
) -> None:
    queue = client.queue(place["queue"])
    for shop in ("berlin", "paris", "paris"):
        queue.later("1h", shop, attributes={"shop": shop})
    chips = re.findall(r'<a class="chip[^"]*" href="([^"]+)">([^<]+)</a>', boss.get("jobs", **place).text)
    assert [text for _, text in chips] == ["shop=paris", "shop=berlin"]
    page = boss.http.get(unescape(chips[0][0])).text
    assert "2 matches" in page
    assert '<a class="chip on"' in page


def test_exported_jobs_are_pushed_again_as_they_were(
    boss: Visitor, client: duetime.Client, place: dict[str, str], tmp_path: Path, console_server: Served
) -> None:
    queue, copy = client.queue(place["queue"]), client.queue(place["queue"] + "-copy")
    attributes = {"shop": "a=b", "city": "Köln"}
    queue.later("2h", b"\xff\x00", ttl="3h", tries=7, priority=duetime.Priority.HIGH, attributes=attributes)
    queue.later("1h", '{"n": 1}', tries=0, priority=duetime.Priority.LOW)
    queue.push("ready", ttl="1h", attributes=attributes)
    queue.push("dead", tries=2, priority=duetime.Priority.HIGH, attributes=attributes)
    held = queue.pop()  # high goes first
    assert held is not None
    client.kill(held, error="no")

    exports = [boss.get("export", **place, state=state) for state in ("delayed", "ready")]
    exports.append(boss.get("export-failures", **place))
    file = tmp_path / "jobs.jsonl"
    file.write_bytes(b"".join(one.content for one in exports))
    store = f"sqlite://{console_server.log.parent}/jobs.db"
    command = [*COMMAND[:-1], "push", copy.name.name, "--file", str(file), "--url", store]
    subprocess.run(command, check=True, timeout=120)

    def known(listed: QueueClient, *states: State) -> dict[str, tuple[object, ...]]:
        jobs = [job for state in states for job in listed.list_jobs(state).jobs]
        return {job.id: (job.body, job.tries, job.priority, dict(job.attributes)) for job in jobs}

    assert known(copy, State.DELAYED, State.READY) == known(queue, State.DELAYED, State.READY, State.DEAD)
    for job in [*queue.list_jobs("delayed").jobs, *queue.list_jobs("ready").jobs]:
        again = copy.get(job.id)
        assert again.due_at == job.due_at
        assert bool(again.expires_at) == bool(job.expires_at)
        # What was left at the export; the time until the push comes on top.
        assert again.expires_at >= job.expires_at - 1


def test_the_next_jobs_of_all_queues_are_listed_by_due_time(boss: Visitor, client: duetime.Client) -> None:
    names = [f"next-{uuid.uuid4().hex[:8]}" for _ in range(3)]
    for number in range(25):  # more of each queue than are read at a time
        for place, name in enumerate(names):
            due_at = 1_577_836_800_000 + number * 3 + place  # before the jobs of all other tests
            client.queue(name).push({"n": number}, id=f"{number:02}", due_at=due_at)
    client.queue(names[0]).later("30s", "not yet")  # before those of other tests, which leave many jobs of an hour
    page = boss.get("jobs", state="ready").text.partition("<tbody>")[2]
    shown = re.findall(rf"queue=({'|'.join(names)})&amp;id=(\d\d)", page)
    assert shown == [(name, f"{number:02}") for number in range(25) for name in names][: len(shown)]
    assert len(shown) == 50
    assert "not yet" in boss.get("jobs").text
    for name in names:
        client.queue(name).purge()


def test_a_queue_without_history_says_so(boss: Visitor, client: duetime.Client) -> None:
    name = f"quiet-{uuid.uuid4().hex[:8]}"
    client.queue(name).pause()  # a queue with a rule exists, and nothing was ever pushed to it
    page = boss.get("queue", pool="default", namespace="default", queue=name).text
    assert "Nothing happened in this queue in this time." in page
    assert 'class="chart"' not in page
    client.queue(name).resume()


def test_a_filter_is_saved_as_a_view_for_all_who_see_the_namespace(boss: Visitor, client: duetime.Client) -> None:
    name = f"view{uuid.uuid4().hex[:8]}"
    client.queue(name).push({"kind": "trial"}, delay="30m")
    place = {"pool": "default", "namespace": "default", "queue": name}
    wanted = {"state": "delayed", "text": "trial", "since": "10m"}
    assert "Save view" not in boss.get("jobs", **place).text
    assert "Save view" in boss.get("jobs", **place, **wanted).text
    saved = boss.post("do/save-view", **place, **wanted, name="Trials soon").text
    assert "Saved the view Trials soon" in saved
    assert "&#34;kind&#34;:&#34;trial&#34;" in saved
    link = next(part for part in boss.get("jobs").text.split('"') if part.startswith("/console/jobs?") and name in part)
    assert "since=10m" in link  # it stays relative
    assert "text=trial" in link
    assert "at most 60 characters" in boss.post("do/save-view", **place, **wanted, name=" ").text
    boss.post("do/add-user", name=f"v-{name}", role="viewer", password="correct horse staple")
    viewer = Visitor(boss.admin)
    with viewer.http:
        viewer.log_in(f"v-{name}", "correct horse staple")
        assert "Trials soon" in viewer.get("jobs", **place).text
        assert viewer.post("do/delete-view", **place, name="Trials soon").status_code == 403
    boss.post("do/delete-view", **place, name="Trials soon")
    assert "Trials soon" not in boss.get("jobs", **place).text
