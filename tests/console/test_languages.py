import re
from pathlib import Path

from duetime.console import visit
from duetime.console.formats import ENGLISH_UNITS, duration, seconds, span
from duetime.console.languages import LANGUAGES, catalogue, choose, say

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
    units = {unit: say("zh", f"unit.{unit}") for unit in ENGLISH_UNITS}
    assert span(200_000) == "3 m 20 s"
    assert span(200_000, units) == "3 分钟 20 秒"
    assert seconds(0.005, units) == "5 毫秒"
    assert [duration(ms) for ms in (0, 1500, 3000, 600_000)] == ["0", "1500ms", "3s", "10m"]


def test_the_browser_s_language_is_taken_unless_another_was_picked() -> None:
    assert choose("", "fr-FR, zh-CN;q=0.9, en;q=0.8") == "zh"
    assert choose("en", "zh") == "en"
    assert choose("xx", "fr") == "en"
