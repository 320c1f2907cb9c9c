"""Tables that a click on the head of a column sorts, without JavaScript."""

import re
import uuid
from html import unescape

import pytest

import duetime
from duetime.client.topics import Topics
from duetime.console.pages.jobs import LOOK_AT
from tests.console.conftest import Visitor


@pytest.fixture
def place() -> dict[str, str]:
    return {"pool": "default", "namespace": "default", "queue": f"sorted-{uuid.uuid4().hex[:10]}"}


def test_jobs_are_sorted_by_a_column_where_their_queue_is_short(
    boss: Visitor, client: duetime.Client, place: dict[str, str]
) -> None:
    queue = client.queue(place["queue"])
    for body, hours in (("cherry", 3), ("apple", 2), ("Banana", 1)):
        queue.later(f"{hours}h", body, id=f"{hours}-{body}")

    def bodies(**query: str) -> list[str]:
        text = boss.get("jobs", **place, state="delayed", **query).text
        return re.findall(r'row-link"[^>]*>(\w+)</a>', text.partition("<tbody>")[2])

    assert bodies() == ["Banana", "apple", "cherry"]
    assert bodies(sort="body") == ["apple", "Banana", "cherry"]
    assert bodies(sort="-due") == ["cherry", "apple", "Banana"]
    assert bodies(sort="born") == ["Banana", "apple", "cherry"]
    assert bodies(sort="-born") == ["cherry", "apple", "Banana"]
    assert bodies(sort="-id", text="an") == ["Banana"]
    assert 'aria-sort="descending"' in boss.get("jobs", **place, state="delayed", sort="-due").text


def test_a_sorted_list_has_pages(boss: Visitor, client: duetime.Client, place: dict[str, str]) -> None:
    client.queue(place["queue"]).bulk([f"n{number:03}" for number in range(120)], delay="1h")
    seen: list[str] = []
    page = boss.get("jobs", **place, state="delayed", sort="-body").text
    while True:
        seen += re.findall(r'row-link"[^>]*>(n\d+)</a>', page)
        further = re.search(r'rel="next" href="([^"]+)"', page)
        if further is None:
            break
        page = boss.http.get(unescape(further[1])).text
    assert seen == [f"n{number:03}" for number in range(119, -1, -1)]
    assert 'rel="prev"' in page


def test_a_long_list_says_that_it_is_not_sorted(boss: Visitor, client: duetime.Client, place: dict[str, str]) -> None:
    client.queue(place["queue"]).bulk(["x"] * (LOOK_AT + 1), delay="1h")
    page = boss.get("jobs", **place, state="delayed", sort="-body").text
    assert "lists of up to 2,000 jobs can be sorted" in page
    assert "aria-sort" not in page


@pytest.mark.parametrize("page", ["queues", "topics", "schedules", "failures"])
def test_every_head_that_is_a_link_sorts_both_ways(
    boss: Visitor, client: duetime.Client, place: dict[str, str], page: str
) -> None:
    name = place["queue"]
    client.queue(name).push("x", tries=1)
    held = client.queue(name).pop()
    assert held is not None
    client.kill(held, error="no address")
    client.schedules.put(name, queue=name, cron="0 3 * * *", body="x")
    Topics(client).add(f"topic-{name}", "https://example.com/hook")
    links = set(re.findall(r'<th[^>]*><a href="([^"]*[?&;]sort=\w+)"', boss.get(page).text))
    assert len(links) >= 3
    for link in links:
        sorted_page = boss.http.get(unescape(link)).text
        again = re.search(r'aria-sort="(\w+)"><a href="([^"]+)"', sorted_page)
        assert again is not None, link
        other_way = boss.http.get(unescape(again[2])).text
        assert {again[1], re.findall(r'aria-sort="(\w+)"', other_way)[0]} == {"ascending", "descending"}


def test_topics_that_need_help_come_first(boss: Visitor, client: duetime.Client, place: dict[str, str]) -> None:
    topics, name = Topics(client), place["queue"]
    for key in ("a", "b", "c"):
        topics.add(f"{name}.{key}", "https://example.com/hook")
    topics.offline(f"{name}.b")

    def keys(sort: str) -> list[str]:
        return re.findall(rf"{name}\.(\w)</a>", boss.get("topics", find=name, sort=sort).text)

    assert keys("topic") == ["a", "b", "c"]
    assert keys("-topic") == ["c", "b", "a"]
    assert keys("health") == ["b", "a", "c"]
