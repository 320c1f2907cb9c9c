"""Forms keep what was typed, show every error at its field, and read times as people write them."""

import re
import uuid
from datetime import datetime, timedelta
from html import unescape
from zoneinfo import ZoneInfo

import pytest

import duetime
from duetime.alerts.problems import KEY, SETTINGS
from duetime.client.topics import Topics
from duetime.stores.open import open_store
from tests.console.conftest import ACCOUNT, Visitor
from tests.plugins.serving import Served


@pytest.fixture
def place(client: duetime.Client) -> dict[str, str]:
    name = f"f{uuid.uuid4().hex[:12]}"
    client.queue(name).later("1h", "there")
    return {"pool": "default", "namespace": "default", "queue": name}


def value_of(page: str, name: str) -> str:
    found = re.findall(rf'<input[^>]*name="{name}"[^>]*value="([^"]*)"', page)
    return unescape(found[0])


def error_of(page: str, name: str) -> str:
    [found] = re.findall(rf'id="error-{name}"[^>]*>([^<]*)<', page)
    return unescape(found)


def test_a_refused_topic_keeps_all_fields_and_says_all_that_is_wrong(boss: Visitor, client: duetime.Client) -> None:
    key = f"t{uuid.uuid4().hex[:12]}"
    fields = {"callback": "https://shop.example.com/x", "schedule": "every now and then", "cap": "many"}
    fields |= {
        "name": "Orders <b>",
        "timeout": "7s",
        "retry_if": "{res.code} != 200",
        "method": "GET",
        "in_flight": "7",
    }
    refused = boss.post("do/add-topic", pool="default", namespace="default", topic=key, lift_cap="on", **fields)
    assert refused.status_code == 422
    page = refused.text
    for name, value in {**fields, "topic": key}.items():
        if name != "method":
            assert value_of(page, name) == value
    assert '<option value="GET" selected>' in page
    assert re.search(r'name="lift_cap"\s+checked', page)
    assert "schedule" in error_of(page, "schedule")
    assert "whole number" in error_of(page, "cap")
    right = {**fields, "schedule": "1m,5m", "cap": "3"}
    boss.post("do/add-topic", pool="default", namespace="default", topic=key, **right)
    assert Topics(client).get(key).in_flight == 7
    taken = boss.post("do/add-topic", pool="default", namespace="default", topic=key, **right).text
    assert error_of(taken, "topic") == "taken"
    Topics(client).remove(key)


def test_a_refused_job_keeps_its_body(boss: Visitor, place: dict[str, str]) -> None:
    refused = boss.post("do/push", **place, body='{"long": "text"}', tries="x", when="soon", ttl="1 moon")
    assert refused.status_code == 422
    assert "{&#34;long&#34;: &#34;text&#34;}" in refused.text
    assert "time must be like" in error_of(refused.text, "when")
    assert "whole number" in error_of(refused.text, "tries")
    assert error_of(refused.text, "ttl")


def test_a_wrong_date_of_the_filter_is_said_at_its_field(boss: Visitor, place: dict[str, str]) -> None:
    page = boss.get("jobs", **place, state="delayed", since="someday", text="kept")
    assert page.status_code == 200
    assert (value_of(page.text, "since"), value_of(page.text, "text")) == ("someday", "kept")
    assert "time must be like" in error_of(page.text, "since")


def test_a_bulk_reschedule_asks_for_its_time_in_the_preview(
    boss: Visitor, client: duetime.Client, place: dict[str, str]
) -> None:
    preview = boss.get("bulk", **place, state="delayed", text="there", verb="reschedule", when="").text
    assert "Give a time" in error_of(preview, "when")
    refused = boss.post("do/bulk", **place, state="delayed", text="there", verb="reschedule", when="")
    assert refused.status_code == 422
    assert value_of(refused.text, "text") == "there"
    boss.post("do/bulk", **place, state="delayed", text="there", verb="reschedule", when="5 hours")
    [job] = client.queue(place["queue"]).list_jobs("delayed").jobs
    assert job.due_at > job.born + 4 * 3_600_000


def test_a_time_is_read_in_the_visitor_s_zone_and_explained_before_it_is_saved(
    boss: Visitor, client: duetime.Client, place: dict[str, str]
) -> None:
    zone = ZoneInfo("Asia/Shanghai")
    boss.http.cookies.set("duetime_zone", "Asia%2FShanghai", path="/console")
    queue = client.queue(place["queue"])
    [job] = queue.list_jobs("delayed").jobs
    tomorrow = (datetime.now(zone) + timedelta(days=1)).replace(hour=9, minute=0, second=0, microsecond=0)
    said = boss.get("time", field="when", when="tomorrow 09:00").text
    assert f"{tomorrow:%Y-%m-%d} 09:00:00 Asia/Shanghai, in " in said
    assert "is due at" in boss.post("do/reschedule", **place, id=job.id, when="tomorrow 09:00").text
    assert queue.get(job.id).due_at == int(tomorrow.timestamp() * 1000)
    assert "time must be like" in boss.get("time", field="when", when="soon").text


def test_a_queue_that_does_not_exist_has_no_page(boss: Visitor) -> None:
    nowhere = {"pool": "default", "namespace": "default", "queue": "nowhere-at-all"}
    for path in ("queue", "jobs", "new"):
        page = boss.get(path, **nowhere)
        assert page.status_code == 404
        assert "does not exist" in page.text


def test_the_audit_log_is_readable_and_searched(boss: Visitor, place: dict[str, str]) -> None:
    boss.post("do/bulk", **place, state="delayed", text="there", verb="run-now")
    page = boss.get("audit", find=place["queue"]).text
    assert "JobFilter" not in page
    assert "1 jobs: delayed, with the text &#39;there&#39;" in page
    assert place["queue"] not in boss.get("audit", find="Drain store").text


async def test_a_test_alert_to_a_mail_address_says_that_the_mail_server_is_missing(
    boss: Visitor, console_server: Served
) -> None:
    store = await open_store(f"sqlite://{console_server.log.parent}/jobs.db")
    await store.registry.delete(SETTINGS, KEY)
    await store.close()
    boss.post("do/add-address", address="ops@example.com")
    try:
        assert "set the mail server first" in boss.get("alerts").text
        refused = boss.post("do/test-alert").text
        assert "Set a mail server first: ops@example.com" in refused
    finally:
        boss.post("do/remove-address", address="ops@example.com")


def test_alert_addresses_are_masked_everywhere(boss: Visitor, client: duetime.Client) -> None:
    added = boss.post("do/add-address", address="tgram://123456789:AAHsecret_secret_secret_secret_secret12/42/").text
    try:
        for page in (added, boss.get("alerts").text, boss.get("audit").text):
            assert "AAHsecret" not in page
        assert "tgram://***" in added
    finally:
        boss.post("do/remove-address", address="tgram://***")


def test_users_change_their_own_password(boss: Visitor) -> None:
    boss.post("do/add-user", name="pam", role="viewer", password="first password")
    pam = Visitor(boss.admin)
    with pam.http:
        wrong = pam.log_in("pam", "nonsense nonsense")
        assert value_of(wrong.text, "user") == "pam"
        pam.log_in("pam", "first password")
        refused = pam.post("do/password", old="wrong", new="second password", again="other")
        assert error_of(refused.text, "old") == "Wrong password."
        assert error_of(refused.text, "again")
        pam.post("do/password", old="first password", new="second password", again="second password")
        assert pam.get("queues").url.path == "/console/login"
        assert pam.log_in("pam", "second password").url.path == "/console/"
    boss.post("do/remove-user", name="pam")
    assert boss.post("do/password", old=ACCOUNT[1], new="x", again="x").status_code == 422


def test_preferences_are_kept_in_the_browser(boss: Visitor, client: duetime.Client, place: dict[str, str]) -> None:
    boss.post("preferences", theme="dark", rate="30", times="utc", back="/console/queues")
    page = boss.get("queues").text
    assert 'data-theme="dark"' in page
    boss.post("preferences", rate="0", back="/console/queues")
    assert "sse-connect" not in boss.get("queues").text
    boss.post("preferences", namespace="default/elsewhere", back="/console/queues")
    assert place["queue"] not in boss.get("queues").text
    boss.post("preferences", namespace="", back="/console/queues")
    assert place["queue"] in boss.get("queues", find=place["queue"]).text
