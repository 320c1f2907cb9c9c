import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import msgspec
import pytest

import duetime
from duetime.client.topics import Topics
from duetime.console.journal_lookup import last_calls
from duetime.console.pages.topics import health_of
from duetime.journal.events import Entry, write_line
from duetime.journal.segments import open_name
from duetime.model.errors import TopicNotFound
from duetime.model.job import Event
from duetime.model.names import Queue
from duetime.model.settings import Settings
from duetime.wire.messages import TopicCountsOut
from tests.console.conftest import Visitor
from tests.plugins.until import until


class Receiver(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b'{"code": 200, "x": "<script>"}'
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def receiver() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/notify"
        server.shutdown()


def test_the_form_of_a_new_topic_offers_what_most_receivers_want(boss: Visitor) -> None:
    form = boss.get("topic-new").text

    assert '<option value="JSON" selected>' in form
    assert '<option value="status" selected>' in form


def test_a_topic_is_registered_tested_edited_and_removed(boss: Visitor, client: duetime.Client, receiver: str) -> None:
    key = f"t{uuid.uuid4().hex[:12]}"
    place = {"pool": "default", "namespace": "default", "queue": key}
    fields = {"callback": receiver, "method": "GET", "timeout": "30s", "cap": "3", "in_flight": "5", "priority": "high"}

    added = boss.post("do/add-topic", pool="default", namespace="default", topic=key, verify_tls="on", **fields)
    assert "Created topic" in added.text
    assert Topics(client).get(key).priority == "high"
    assert key in boss.get("topics", find=key).text

    sample = boss.post("do/test-topic", **place, body='{"a": "1"}')
    assert "GET" in sample.text
    assert "done" in sample.text
    assert "&lt;script&gt;" in sample.text

    boss.post("do/offline", **place)
    assert Topics(client).get(key).status == "offline"
    edited = boss.post("do/edit-topic", **place, **{**fields, "cap": "7"}, secret="new")
    assert "whsec_" in edited.text
    assert Topics(client).get(key).cap == 7
    assert "whsec_" not in boss.get("topic", **place).text

    assert "Nothing was deleted" in boss.post("do/remove-topic", **place, confirm="no").text
    boss.post("do/remove-topic", **place, confirm=key)
    with pytest.raises(TopicNotFound):
        Topics(client).get(key)


def test_a_condition_is_tried_against_an_answer_without_saving_it(boss: Visitor) -> None:
    def check(condition: str, answer: str) -> str:
        headers = {"hx-request": "true", "origin": boss.admin}
        fields = {"condition": condition, "answer": answer}
        return boss.http.post("/console/do/check-condition", data=fields, headers=headers).text

    assert check("{res.code} != 200", '{"code": 500}').startswith("True")
    assert check("{res.code} != 200", '{"code": 200}').startswith("False")
    assert "at character 12" in check("{res.code} !!", "{}")
    assert "<b>" not in check("<b>", "{}")


def test_a_topic_that_cannot_be_is_refused_in_words(boss: Visitor) -> None:
    refused = boss.post("do/add-topic", pool="default", namespace="default", topic="bad", callback="ftp://x")
    assert "callback" in refused.text
    assert "field-error" in refused.text


def test_a_topic_with_a_mail_address_is_refused_with_the_setting_that_allows_it(boss: Visitor) -> None:
    place = {"pool": "default", "namespace": "default", "topic": "mailing"}
    refused = boss.post("do/add-topic", **place, callback="https://shop.example.com/x", alert="ops@example.com")
    assert "alert_mail_domains" in refused.text
    assert boss.get("topic", pool="default", namespace="default", queue="mailing").status_code == 404


def test_a_new_topic_is_tried_before_it_is_created(boss: Visitor, client: duetime.Client, receiver: str) -> None:
    form = {
        "topic": "tried",
        "namespace": "default",
        "pool": "default",
        "method": "GET",
        "success": "status",
        "cap": "7",
    }
    form["callback"] = f"{receiver}/tried"
    page = boss.post("do/try-topic", **form).text
    assert "HTTP 200" in page
    assert f"{receiver}/tried" in page
    assert 'name="cap" value="7"' in page  # the form is kept
    assert "tried" not in [one.topic for one in Topics(client).list_topics()]
    assert boss.post("do/try-topic", **{**form, "cap": "many"}).text.count('class="field-error"') == 1


async def test_a_call_that_failed_by_its_condition_is_red_whatever_its_status(
    boss: Visitor, client: duetime.Client, receiver: str
) -> None:
    for key, condition, color in (("called-well", "", "ready"), ("called-badly", "{res.code} == 200", "dead")):
        Topics(client).add(key, receiver, method="GET", retry_if=condition)
        job_id = Topics(client).add_job(key, {"a": "1"}).id
        place = {"pool": "default", "namespace": "default", "queue": key}
        await until(lambda place=place, job_id=job_id: job_id in calls_of(boss.get("topic", **place).text))
        await until(lambda place=place, color=color: f'badge {color}">200' in calls_of(boss.get("topic", **place).text))


def calls_of(page: str) -> str:
    return page.split("Last calls")[1].split("</section>", maxsplit=1)[0]


def test_a_topic_whose_calls_all_failed_today_is_not_idle(client: duetime.Client) -> None:
    topic = Topics(client).add("not-idle", "http://127.0.0.1:9/never")
    assert health_of(topic, [], TopicCountsOut(failed=7)) == ("failing", 7)
    assert health_of(topic, [], TopicCountsOut(failed=7, notified=1)) == ("unsteady", 0)
    assert health_of(topic, [], TopicCountsOut(failed=7, notified=100)) == ("ok", 0)
    assert health_of(topic, [], TopicCountsOut()) == ("idle", 0)


async def test_calls_are_found_behind_much_traffic_of_other_queues(tmp_path: Path) -> None:
    node = tmp_path / "node-1"
    node.mkdir()
    entry = Entry(ts=1, event=Event.NOTIFIED, namespace="shop", queue="paid", id="1", wrote_at=1, node="n", seq=1)
    other = msgspec.structs.replace(entry, queue="busy", event=Event.ACCEPTED, body="x" * 1_000_000)
    calls = [
        write_line(msgspec.structs.replace(entry, id=str(number), ts=number, status=200)) for number in range(1, 4)
    ]
    failed = write_line(msgspec.structs.replace(entry, event=Event.RELEASED, id="2"))
    (node / open_name(1)).write_bytes(b"".join([*calls, failed, *[write_line(other)] * 6]))
    found = await last_calls(Settings(journal=str(tmp_path)), "default", Queue("shop", "paid"), 10)
    assert [(one.entry.id, one.failed) for one in found] == [("3", False), ("2", True), ("1", False)]
    assert await last_calls(Settings(journal=str(tmp_path)), "fast", Queue("shop", "paid"), 10) == []
