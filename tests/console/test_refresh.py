"""How an open page is refreshed: only what has changed is sent, and equal pages are rendered once."""

import hashlib
import random
import re
import uuid

import httpx
import msgspec
import pytest

import duetime
from duetime.console.refreshes import find_changes
from duetime.console.visit import SEEN
from tests.console.conftest import Visitor
from tests.plugins.until import until


def apply_changes(before: list[str], changes: list[str | list[int]]) -> list[str]:
    """As the page's script does."""
    return [line for one in changes for line in ([one] if isinstance(one, str) else before[slice(*one)])]


def refresh(visitor: Visitor, path: str, seen: str = "") -> httpx.Response:
    return visitor.http.get(f"/console/{path}", headers={"hx-request": "true", "x-seen": seen})


@pytest.mark.parametrize("path", ["", "queues", "failures", "workers", "schedules"])
def test_a_page_that_has_not_changed_is_not_sent_again(boss: Visitor, path: str) -> None:
    first = refresh(boss, path)
    assert first.headers["x-seen"] in first.text
    again = refresh(boss, path, first.headers["x-seen"])
    assert (again.status_code, again.text) == (204, "") or again.headers["x-seen"] != first.headers["x-seen"]
    assert refresh(boss, path, "other").status_code == 200


async def test_a_page_that_has_changed_is_sent_as_the_lines_that_are_new(boss: Visitor, client: duetime.Client) -> None:
    name = f"part-{uuid.uuid4().hex[:6]}"
    for number in range(20):
        client.queue(f"{name}-{number:02}").later("30d", "x")
    path = f"queues?find={name}"
    boss.get("queues", find=name)  # unlike a refresh, a page that is opened asks the store anew
    first = refresh(boss, path)
    seen = first.headers["x-seen"]
    client.queue(f"{name}-07").later("30d", "y")

    answers: list[httpx.Response] = []

    def has_changed() -> bool:
        answers.append(refresh(boss, path, seen))
        return answers[-1].status_code == 200

    await until(has_changed)
    answer = answers[-1]
    assert answer.headers["x-changes"] == seen
    assert len(answer.content) < len(first.content) / 4
    page = "\n".join(apply_changes(first.text.split("\n"), msgspec.json.decode(answer.content)))
    [digest] = re.findall(r'"x-seen": "(\w+)"', page)
    assert digest == hashlib.blake2b(page.replace(digest, SEEN).encode(), digest_size=8).hexdigest()


@pytest.mark.parametrize("seed", range(20))
def test_changed_lines_and_stretches_make_the_new_text(seed: int) -> None:
    pick = random.Random(seed)
    before = [pick.choice("abcdefgh") * pick.randrange(4) for _ in range(pick.randrange(40))]
    after = [pick.choice([*before, "new"]) for _ in range(10)] + before[pick.randrange(9) :]
    assert apply_changes(before, find_changes(before, after)) == after


def test_one_new_row_on_top_moves_no_others() -> None:
    rows = [f"row {number}" for number in range(50)]
    assert find_changes(rows, ["row 50", *rows]) == ["row 50", [0, 50]]
    assert find_changes(rows, [*rows[:7], "new", *rows[8:]]) == [[0, 7], "new", [8, 50]]


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
