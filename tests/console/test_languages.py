import re
from collections.abc import Callable
from html import unescape
from pathlib import Path

import pytest
from msgspec.structs import replace

import duetime
from duetime.callbacks.outcome import CallbackAnswer, Verdict, describe
from duetime.client.topics import Topics
from duetime.console import visit
from duetime.console.formats import seconds
from duetime.console.forms import read_span, whole_number
from duetime.console.languages import LANGUAGES, catalogue, choose, explain, say, translate
from duetime.model.clock import time_zone
from duetime.model.errors import DuetimeError
from duetime.model.humanise import SPACED_UNITS, exact_duration, rough_span, span
from duetime.model.names import check_attributes, check_channel, check_id, check_queue
from duetime.model.schedules import cron, every
from duetime.model.topic import Topic, check_topic
from duetime.model.when import read_when
from duetime.stores.redis.store import _persistence
from tests.console.conftest import Visitor
from tests.console.visible_words import english_words
from tests.plugins.serving import serving

FOLDER = Path(visit.__file__).parent
PLACES = re.compile(r"\{(\w+)\}")


def test_no_language_lacks_a_key_or_a_place() -> None:
    english = catalogue("en")
    for language in LANGUAGES:
        other = catalogue(language)
        assert set(other) == set(english)
        for key, text in english.items():
            assert set(PLACES.findall(other[key])) == set(PLACES.findall(text)), key
            assert other[key].strip()


def test_every_key_that_a_page_names_is_there() -> None:
    sources = [*FOLDER.rglob("*.html"), *FOLDER.rglob("*.py")]
    named = {
        key
        for path in sources
        for key in re.findall(r"""(?:\bt|\.say)\(["']([a-z_]+\.[a-z0-9_]*[a-z0-9])["']""", path.read_text())
    }

    assert len(named) > 50
    assert named <= set(catalogue("en"))


def test_one_is_said_differently_where_the_language_does() -> None:
    assert say("en", "queues.count", count="1") == "1 queue"
    assert say("en", "queues.count", count="21") == "21 queues"
    assert say("zh", "queues.count", count="1") == "1 个队列"


def test_times_are_written_in_the_visitor_s_language() -> None:
    units = {unit: say("zh", f"unit.{unit}") for unit in SPACED_UNITS}
    assert span(200_000, SPACED_UNITS) == "3 m 20 s"
    assert span(200_000, units) == "3 分钟 20 秒"
    assert [seconds(one, units) for one in (0.005, 1.5, 90)] == ["5 毫秒", "1.5 秒", "1 分钟 30 秒"]
    rough = [999, 12_900, 1_950_000, 7_530_000, 36_900_000, 90_061_000, 864_000_000]
    assert [rough_span(one) for one in rough] == ["0s", "12s", "32m", "2h 5m", "10h", "1d 1h", "10d"]
    assert rough_span(7_530_000, units) == "2 小时 5 分钟"
    assert [exact_duration(ms) for ms in (0, 1500, 3000, 600_000)] == ["0s", "1500ms", "3s", "10m"]


def test_the_browser_s_language_is_taken_unless_another_was_picked() -> None:
    assert choose("", "fr-FR, zh-CN;q=0.9, en;q=0.8") == "zh"
    assert choose("en", "zh") == "en"
    assert choose("xx", "fr") == "en"
    assert choose("xx", "fr", "zh") == "zh"


STORES = ("PostgreSQL", "MySQL", "SQLite")
PLAIN = (
    *("", "?span=month", "queues", "queues?idle=show", "jobs", "failures", "search", "search?q=later", "batches"),
    *(
        "schedules",
        "topics",
        "topic-new",
        "stores",
        "alerts",
        "mail",
        "workers",
        "tasks",
        "pipeline",
        "access",
        "audit",
    ),
)
OF_A_QUEUE = (
    "queue",
    "new",
    "failures",
    "failures-act?verb=retry",
    "job?id=later",
    "job?id=text",
    "new?mode=edit&id=later",
    "topic",
)
OF_JOBS = ("jobs?state=ready", "jobs?state=delayed", "jobs?state=dead", "bulk?state=delayed&verb=cancel")


def test_no_word_of_a_chinese_page_is_english(tmp_path: Path) -> None:
    """On a server of its own: alerts, which other tests leave behind, are in English."""
    with serving(tmp_path, "--dev") as served:
        with duetime.connect(served.api) as client:
            queue = client.queue("zh")
            queue.push("x", id="dead")
            client.kill(queue.reserve()[0], error="!")
            queue.later("5m", "x", id="text")
            queue.later("5m", {"a": 1}, id="later", attributes={"a": "b"}, ttl="1h", priority="high")
            Topics(client).add("zh", "http://127.0.0.1:9/")
        visitor = Visitor(served.admin)
        place = {"pool": "default", "namespace": "default", "queue": "zh"}
        with visitor.http as http:
            http.headers["accept-language"] = "zh"
            for path in (*PLAIN, *OF_A_QUEUE, *OF_JOBS):
                address, _, query = path.partition("?")
                given = dict(pair.split("=") for pair in query.split("&") if pair)
                page = visitor.get(address, **given, **({} if path in PLAIN else place))
                assert page.status_code == 200, path
                assert english_words(page.text, "zh", "default", "later", "dead", "text", *STORES) == set(), path
            refused = visitor.post("do/cancel", id="none", **place).text
    assert say("zh", "error.title") in refused
    assert "default/zh 中没有任务" in unescape(refused)


def test_what_stores_say_of_themselves_is_translated() -> None:
    for info in ({}, {"aof_enabled": "1"}, {"aof_enabled": "1", "aof_last_write_status": "err"}):
        said = _persistence(info)
        assert translate("en", "store_says", said) == said
        assert not re.search("[a-z]", translate("zh", "store_says", said))


TOPIC = Topic(key="a", callback="http://127.0.0.1:9/")
REFUSALS: tuple[Callable[[], object], ...] = (
    lambda: whole_number("many"),
    lambda: read_span("often"),
    lambda: read_span("-5m"),
    lambda: read_span("200y"),
    lambda: read_when("sometimes", now_ms=0, zone=None),
    lambda: read_when("9" * 400, now_ms=0, zone=None),
    lambda: time_zone("Mars/Olympus"),
    lambda: check_queue("default", "no name"),
    lambda: check_queue("n" * 300, "x"),
    lambda: check_queue("no space", "x"),
    lambda: check_channel("no name"),
    lambda: check_id(""),
    lambda: check_id("a\nb"),
    lambda: check_attributes({"": "x"}),
    lambda: check_attributes({"a": "x" * 10_000}),
    lambda: check_attributes({str(number): "" for number in range(200)}),
    lambda: check_topic(replace(TOPIC, callback="ftp://a")),
    lambda: check_topic(replace(TOPIC, callback="http://0x7f.1/")),
    lambda: check_topic(replace(TOPIC, callback="http://a:b@example.com/")),
    lambda: check_topic(replace(TOPIC, callback="http://example.com/a b")),
    lambda: check_topic(replace(TOPIC, schedule="now and then")),
    lambda: check_topic(replace(TOPIC, alert=("no address!",))),
    lambda: check_topic(replace(TOPIC, name="x" * 10_000)),
    *(lambda name=name: check_topic(replace(TOPIC, **{name: -1})) for name in ("cap", "rate", "in_flight")),
    *(lambda name=name: check_topic(replace(TOPIC, **{name: -1})) for name in ("delay_ms", "timeout_ms")),
    lambda: every("1ms"),
    lambda: cron("at noon", "UTC"),
    lambda: cron("0 0 30 2 *", "UTC"),
)


@pytest.mark.parametrize("refuse", REFUSALS)
def test_what_is_wrong_with_a_field_is_said_in_chinese(refuse: Callable[[], object]) -> None:
    with pytest.raises(DuetimeError) as refused:
        refuse()
    said = explain("zh", refused.value.message)
    assert re.search("[\u4e00-\u9fff]", said), refused.value.message
    assert explain("en", refused.value.message) == refused.value.message


@pytest.mark.parametrize("verdict", [Verdict.CONDITION, Verdict.EMPTY])
def test_why_a_call_failed_is_said_in_chinese(verdict: Verdict) -> None:
    said = explain("zh", describe(verdict, CallbackAnswer(200, b'{"code": 500}')))
    assert re.search("[\u4e00-\u9fff]", said)
    assert '{"code": 500}' in said


def test_an_error_that_is_not_in_the_table_stays_as_it_is() -> None:
    assert explain("zh", "the store says no") == "the store says no"
    assert explain("zh", "topic name must have at most " * 1_000).startswith("topic")  # too long to be compared
