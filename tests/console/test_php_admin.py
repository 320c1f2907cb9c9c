"""/add.php and /check.php, called as scripts of php-delayqueue do."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import msgspec
import pytest

import duetime
from duetime.alerts.problems import KEY, SETTINGS, AlertSettings
from duetime.client.topics import Topics
from duetime.model.errors import TopicNotFound
from duetime.stores.open import open_store
from tests.plugins.serving import Served, serving

TOKEN = "let me in"
OK = {"code": 1, "msg": "succ"}

Call = Callable[..., Any]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(
        tmp_path_factory.mktemp("php"),
        "--journal",
        "off",
        DUETIME_PHP_ADMIN_TOKEN=TOKEN,
        DUETIME_ALERT_MAIL_DOMAINS="example.com",
    ) as served:
        yield served
    assert "Traceback" not in served.log.read_text()
    assert TOKEN not in served.log.read_text()


@pytest.fixture
def store(site: Served) -> str:
    return f"sqlite://{site.log.parent}/jobs.db"


@pytest.fixture
def topics(store: str) -> Iterator[Topics]:
    with duetime.connect(store) as client:
        yield Topics(client)


@pytest.fixture
def add(site: Served) -> Call:
    def call(operation: str, **fields: str) -> Any:
        query = {"op": operation, "token": TOKEN, **fields}
        return httpx.get(f"{site.admin}/add.php", params=query, timeout=60).json()

    return call


@pytest.fixture
def check(site: Served) -> Call:
    def call(**fields: str) -> int:
        return httpx.get(f"{site.admin}/check.php", params={"token": TOKEN, **fields}, timeout=60).json()["code"]

    return call


def test_a_topic_is_added_edited_put_offline_and_deleted(add: Call, check: Call, topics: Topics) -> None:
    assert check(topic="order") == 1
    added = add(
        "topic_add",
        t_name="Orders",
        topic="order",
        delay="60",
        callback="https://shop.example.com/order",
        method="POST",
        timeout="500",
        re_notify_flag="{res.code} != 200",
        email="ops@example.com,dev@example.com",
        priority="1",
        createor="ann",
    )
    assert added == OK
    topic = topics.get("order")
    assert (topic.name, topic.callback, topic.method) == ("Orders", "https://shop.example.com/order", "POST")
    assert (topic.delay_ms, topic.timeout_ms, topic.priority, topic.creator) == (60_000, 500, "high", "ann")
    assert (topic.retry_if, topic.alert) == ("{res.code} != 200", ["ops@example.com", "dev@example.com"])

    number = str(topic.id)
    assert check(topic="order") == 2
    assert check(topic="order", id=number) == 1
    assert add("topic_add", topic="order", callback="https://shop.example.com/other")["code"] == 0
    assert add("topic_add", topic="plain", callback="https://shop.example.com/plain") == OK
    assert (topics.get("plain").method, topics.get("plain").success) == ("GET", "body")
    topics.remove("plain")
    assert add("topic_add", id=number, topic="order", delay="5", timeout="") == OK
    assert (topics.get("order").delay_ms, topics.get("order").timeout_ms) == (5000, 3000)
    assert topics.get("order").callback == "https://shop.example.com/order"
    assert add("topic_add", id=number, topic="renamed")["code"] == 0

    assert add("update_status", table="dq_topic", id=number, status="2") == OK
    assert topics.get("order").status == "offline"
    assert add("update_status", table="dq_topic", id=number, status="1") == OK
    assert topics.get("order").status == "online"
    assert add("del", table="dq_topic", id=number) == OK
    with pytest.raises(TopicNotFound):
        topics.get("order")
    assert add("del", table="dq_topic", id=number)["code"] == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"op": "topic_add", "topic": "bad", "callback": "ftp://x"},
        {"op": "topic_add", "topic": "bad/name", "callback": "https://example.com"},
        {"op": "topic_add", "topic": "bad", "callback": "https://example.com", "delay": "soon"},
        {"op": "topic_add", "topic": "bad", "callback": "https://example.com", "re_notify_flag": "system('ls')"},
        {"op": "redis_add", "t_name": "r", "t_content": "127.0.0.1:6379:"},
        {"op": "del", "table": "dq_redis", "id": "1"},
        {"op": "alert", "host": "", "user": ""},
        {"op": "no such thing"},
        {},
    ],
)
def test_what_cannot_be_done_fails(site: Served, topics: Topics, fields: dict[str, str]) -> None:
    answer = httpx.post(f"{site.admin}/add.php", data={**fields, "token": TOKEN}, timeout=60)
    assert (answer.status_code, answer.json()["code"]) == (200, 0)
    assert answer.json()["msg"].startswith("fail: ")
    assert topics.list_topics() == []


def test_a_mail_address_that_alerts_may_not_go_to_is_refused_with_the_setting_that_allows_it(
    add: Call, topics: Topics
) -> None:
    callback = "https://shop.example.com/order"
    refused = add("topic_add", topic="order", callback=callback, email="ops@example.com,ann@elsewhere.example")
    assert refused["code"] == 0
    assert "alert_mail_domains: 'ann@elsewhere.example'" in refused["msg"]
    assert topics.list_topics() == []
    assert add("topic_add", topic="order", callback=callback, email="") == OK
    topics.remove("order")


async def test_the_mail_server_and_who_hears_of_problems_are_set(add: Call, store: str) -> None:
    fields = {"host": "smtp.example.com", "port": "465", "user": "dq@example.com", "pwd": "hidden"}
    assert add("alert", **fields, **{"ext[redis]": "a@example.com,b@example.com"}) == OK
    opened = await open_store(store)
    record = await opened.registry.get(SETTINGS, KEY)
    await opened.close()
    assert record is not None
    found = msgspec.json.decode(record.value, type=AlertSettings)
    assert found.addresses == ("a@example.com", "b@example.com")
    server = found.mail_server
    assert server is not None
    assert (server.host, server.port, server.password, server.security) == ("smtp.example.com", 465, "hidden", "ssl")


def test_it_needs_its_token_and_is_off_without_one(site: Served, console_server: Served) -> None:
    for path in ("/add.php?op=topic_add", "/check.php?topic=a", "/check.php?topic=a&token=wrong"):
        assert httpx.get(site.admin + path).status_code == 401
    headers = {"authorization": f"Bearer {TOKEN}"}
    assert httpx.get(site.admin + "/check.php?topic=a", headers=headers).json()["code"] == 1
    assert httpx.get(console_server.admin + "/check.php?topic=a").status_code == 404
