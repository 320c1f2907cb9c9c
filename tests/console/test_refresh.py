"""How an open page is refreshed: only what has changed is sent, and equal pages are rendered once."""

import uuid

import httpx
import pytest

import duetime
from tests.console.conftest import Visitor


def refresh(visitor: Visitor, path: str, seen: str = "") -> httpx.Response:
    return visitor.http.get(f"/console/{path}", headers={"hx-request": "true", "x-seen": seen})


@pytest.mark.parametrize("path", ["", "queues", "failures", "workers", "schedules"])
def test_a_page_that_has_not_changed_is_not_sent_again(boss: Visitor, path: str) -> None:
    first = refresh(boss, path)
    assert first.headers["x-seen"] in first.text
    again = refresh(boss, path, first.headers["x-seen"])
    assert (again.status_code, again.text) == (204, "") or again.headers["x-seen"] != first.headers["x-seen"]
    assert refresh(boss, path, "other").status_code == 200


def test_a_refresh_is_shared_by_those_who_see_the_same_and_by_nobody_else(
    boss: Visitor, client: duetime.Client
) -> None:
    name = f"shared-{uuid.uuid4().hex[:6]}"
    client.queue(name).push("x")
    viewer = Visitor(boss.admin)
    boss.post("do/add-user", name=name, role="viewer", password="correct horse staple")
    chinese = Visitor(boss.admin)
    with viewer.http, chinese.http:
        viewer.log_in(name, "correct horse staple")
        chinese.log_in("boss", "correct horse battery")
        chinese.http.headers["accept-language"] = "zh"
        path = f"queues?find={name}"
        pages = [refresh(one, path).text for one in (boss, viewer, chinese)]
    assert all(name in page for page in pages)
    assert "do/purge" in pages[0] or "do/pause" in pages[0]
    assert "do/pause" not in pages[1]
    assert "暂停" in pages[2]
