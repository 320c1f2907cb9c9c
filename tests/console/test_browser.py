"""The console in Chromium. One browser for the module: Playwright's own event loop runs while it is open."""

import json
import shutil
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

import duetime
from tests.console.conftest import ACCOUNT
from tests.plugins.ci import missing_service
from tests.plugins.passwords import hashed
from tests.plugins.redis_server import RedisServer
from tests.plugins.serving import Served, serving
from tools.console_assets import FOR_TESTS, fetch

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(600)

PATIENCE_MS = 120_000
"""For what another process does; a busy machine may take a while."""
FLAGS = ["--no-sandbox", "--disable-background-networking", "--disable-component-update", "--no-first-run"]
HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=1</script>'

Open = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        missing_service("chromium is not installed")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield found
        found.close()


@pytest.fixture(scope="module")
def axe() -> str:
    folder = ROOT / ".venv" / "axe"
    fetch(folder, FOR_TESTS)
    return (folder / "axe.min.js").read_text()


class Watched:
    """A context whose pages may make no error and ask no other host."""

    def __init__(self, context: BrowserContext, admin: str) -> None:
        self.context = context
        self.admin = admin
        self.wrong: list[str] = []

    def page(self) -> Page:
        page = self.context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        page.on("console", lambda one: self.wrong.append(f"console: {one.text}") if one.type == "error" else None)
        page.on("request", self._check)
        return page

    def _check(self, request: Any) -> None:
        if not request.url.startswith((self.admin, "data:")):
            self.wrong.append(f"asked {request.url}")


@pytest.fixture
def watched(browser: Browser, console_server: Served) -> Iterator[Callable[..., Watched]]:
    """Contexts, logged in as an admin, that are looked over when the test ends."""
    made: list[Watched] = []

    def make(served: Served = console_server, **options: Any) -> Watched:
        context = browser.new_context(base_url=served.admin, locale="en-US", **options)
        one = Watched(context, served.admin)
        made.append(one)
        page = one.page()
        page.goto("/console/login")
        page.get_by_label("User").fill(ACCOUNT[0])
        page.get_by_label("Password").fill(ACCOUNT[1])
        page.get_by_role("button", name="Sign in").first.click()
        expect(page.get_by_role("heading", name="Overview")).to_be_visible(timeout=PATIENCE_MS)
        page.close()
        return one

    yield make
    for one in made:
        one.context.close()
        assert one.wrong == []


@pytest.fixture
def name() -> str:
    return f"b{uuid.uuid4().hex[:10]}"


def address(path: str, queue: str, **query: str) -> str:
    pairs = {"pool": "default", "namespace": "default", "queue": queue, **query}
    return f"/console/{path}?" + "&".join(f"{key}={value}" for key, value in pairs.items())


def every_page(queue: str, job: str) -> list[str]:
    plain = [
        "",
        "queues",
        "jobs",
        "failures",
        "search",
        "batches",
        "schedules",
        "schedule",
        "schedule?pool=default&namespace=default&name=nightly",
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
        "?span=month",
    ]
    return [
        *(f"/console/{path}" for path in plain),
        address("queue", queue),
        address("jobs", queue, state="delayed"),
        address("job", queue, id=job),
        address("new", queue, mode="edit", id=job),
        address("bulk", queue, state="delayed", verb="cancel"),
        address("jobs", queue, state="retrying"),
        address("failures", queue),
        address("failures-act", queue, verb="retry"),
    ]


def fill(client: duetime.Client, name: str) -> str:
    queue = client.queue(name)
    job = queue.later("5m", {"to": HOSTILE}, attributes={"shop": HOSTILE}).id  # a bar of the chart of the next hour
    queue.push("x")
    held = queue.pop()
    assert held is not None
    client.kill(held, error=f"refused {HOSTILE}")
    client.schedules.put("nightly", queue=name, cron="0 3 * * *", body=HOSTILE)
    return job


def test_every_page_loads_is_accessible_and_shows_hostile_text_as_text(
    watched: Callable[..., Watched], axe: str, name: str, tmp_path: Path
) -> None:
    """On a server of its own, so that what other tests leave behind does not change what is looked at."""
    (tmp_path / "duetime.toml").write_text(f'[accounts]\n{ACCOUNT[0]} = "{hashed(ACCOUNT[1])}"\n')
    with serving(tmp_path) as served, duetime.connect(f"sqlite://{tmp_path}/jobs.db") as client:
        job = fill(client, name)
        page = watched(served).page()
        wrong: dict[str, Any] = {}
        for path in every_page(name, job):
            page.set_viewport_size({"width": 1280, "height": 800})
            answer = page.goto(path)
            assert answer is not None
            assert answer.status == 200, path
            assert page.title().endswith("Duetime")
            expect(page.locator("#live-state")).not_to_be_empty()  # its stream of events is open
            page.evaluate(axe)
            # Where the page is narrow, tables scroll, and must do so by keyboard, too.
            for look, theme, width in (("light", "light", 1280), ("dark", "dark", 1280), ("on a phone", "light", 390)):
                page.emulate_media(color_scheme=theme, reduced_motion="reduce")  # colours change without a transition
                page.set_viewport_size({"width": width, "height": 800})
                if found := findings(page):
                    wrong[f"{path} {look}"] = found
            page.emulate_media(color_scheme="light")
        assert wrong == {}
        page.goto(address("job", name, id=job))
        expect(page.get_by_text("<script>document.title=1</script>").first).to_be_visible()
        page.close()


def findings(page: Page) -> list[tuple[str, str]]:
    rules = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"], "resultTypes": ["violations"]}
    found = page.evaluate(f"axe.run(document, {json.dumps(rules)})")["violations"]
    return [(one["id"], one["nodes"][0]["html"][:200]) for one in found]


WIDER = """
document.documentElement.scrollWidth > window.innerWidth
    || [...document.querySelectorAll(".scroll, .sticky")].some((one) => one.scrollWidth > one.clientWidth + 1)
"""


def test_no_page_and_no_table_is_wider_than_a_phone_or_a_laptop(
    watched: Callable[..., Watched], client: duetime.Client, name: str
) -> None:
    job = fill(client, name)
    page = watched(color_scheme="dark").page()
    page.goto("/console/access")
    page.locator("summary", has_text="New token").click()
    page.get_by_label("Namespace").first.fill("default")
    page.get_by_label("Description").fill("a program with a long name")
    page.get_by_role("button", name="Create token").click()
    wide: list[tuple[int, str]] = []
    for width in (390, 1440):
        page.set_viewport_size({"width": width, "height": 800})
        for path in every_page(name, job):
            page.goto(path)
            if page.evaluate(WIDER):
                wide.append((width, path))
    assert wide == []


def test_the_head_of_a_long_table_stays_in_view(
    watched: Callable[..., Watched], client: duetime.Client, name: str
) -> None:
    client.queue(name).bulk([{"n": number} for number in range(60)], delay="1h")
    page = watched(viewport={"width": 1440, "height": 800}).page()
    page.goto(address("jobs", name, state="delayed"))
    page.mouse.wheel(0, 900)
    head = page.get_by_role("columnheader", name="Job id")
    page.wait_for_function("window.scrollY > 500")
    box = head.bounding_box()
    assert box is not None
    assert box["y"] == pytest.approx(48, abs=2)
    client.queue(name).purge()


def test_a_delayed_job_is_watched_until_it_is_done_without_a_reload(
    watched: Callable[..., Watched], client: duetime.Client, name: str
) -> None:
    queue = client.queue(name)
    job = queue.later("1h", "watch me").id
    page = watched().page()
    page.goto(address("job", name, id=job))
    page.evaluate("window.sameDocument = true")
    changes: list[str] = []
    page.on("response", lambda one: changes.append(one.url) if "x-changes" in one.headers else None)
    badge = page.locator("#live .badge").first
    expect(badge).to_have_text("Delayed")
    expect(page.locator("#live-state")).to_have_text("Live", timeout=PATIENCE_MS)

    queue.reschedule(job, delay="0s")
    expect(badge).to_have_text("Ready", timeout=PATIENCE_MS)
    held = queue.pop()
    assert held is not None
    expect(badge).to_have_text("Running", timeout=PATIENCE_MS)
    client.ack(held)
    expect(badge).to_have_text("Done", timeout=PATIENCE_MS)
    assert page.evaluate("window.sameDocument")
    assert changes  # after the first refresh only lines that have changed are sent


def test_every_action_works_without_javascript(
    watched: Callable[..., Watched], client: duetime.Client, name: str
) -> None:
    queue = client.queue(name)
    job = queue.later("1h", "x").id
    queue.later("1h", "y")
    page = watched(java_script_enabled=False).page()
    page.goto(address("queue", name))

    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_text("Paused default").first).to_be_visible()
    assert queue.status().rules.paused
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_text("Resumed default")).to_be_visible()

    page.goto(address("job", name, id=job))
    page.get_by_role("button", name="Run now").click()
    expect(page.get_by_text("is due at")).to_be_visible()
    assert queue.get(job).state == "ready"
    page.get_by_label("Actions").click()
    page.get_by_role("link", name="Edit").click()
    page.get_by_label("Body").fill("edited")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Pushed job")).to_be_visible()
    assert queue.get(job).body == b"edited"

    page.goto(address("queue", name))
    page.locator("summary", has_text="Delete jobs").click()
    for state in ("Delayed", "Ready"):
        page.get_by_role("checkbox", name=state).check()
    page.get_by_label(f"Type {name} to confirm").fill(name)
    page.get_by_role("button", name="Delete jobs").click()
    expect(page.get_by_text("Deleted 2 jobs")).to_be_visible()
    assert queue.status().counts.total == 0


def test_a_condition_is_judged_while_it_is_typed(
    watched: Callable[..., Watched], console_server: Served, name: str
) -> None:
    page = watched().page()
    page.goto("/console/topic-new")
    page.get_by_label("Key (the queue's name)").press_sequentially("not a key")
    expect(page.locator("#key-state")).to_contain_text("name")
    page.get_by_label("Key (the queue's name)").fill(name)
    expect(page.locator("#key-state")).to_have_text("free")
    page.get_by_label("Callback", exact=True).fill("http://127.0.0.1:9/notify")
    page.get_by_role("button", name="Create topic").click()
    expect(page.get_by_role("heading", name=name)).to_be_visible()
    other = page.context.new_page()
    other.goto("/console/topic-new")
    other.get_by_label("Key (the queue's name)").fill(name)
    expect(other.locator("#key-state")).to_have_text("taken")
    other.close()

    verdict = page.locator("#verdict")
    page.locator("#condition-answer").fill('{"code": 500}')
    expect(verdict).to_have_text("False: the job would be done.", timeout=PATIENCE_MS)
    page.locator("#condition-text").press_sequentially("{res.code} != 200")
    expect(verdict).to_have_text("True: the job would be tried again.", timeout=PATIENCE_MS)


def test_the_language_is_picked_and_kept(watched: Callable[..., Watched]) -> None:
    page = watched().page()
    page.goto("/console/queues")
    page.get_by_label("Account and settings").click()
    page.get_by_role("button", name="中文").click()
    expect(page.locator("html")).to_have_attribute("lang", "zh")
    page.goto("/console/")
    expect(page.get_by_role("heading", name="概览")).to_be_visible()


def test_what_was_unfolded_stays_so_when_the_page_is_refreshed(watched: Callable[..., Watched]) -> None:
    page = watched().page()
    page.goto("/console/stores")
    page.evaluate("""() => {
        const folded = (text) => `<details id="past"><summary>${text}</summary></details>`;
        // outside of what the server refreshes, which would remove it
        document.body.insertAdjacentHTML("beforeend", folded("before"));
        const details = document.querySelector("#past");
        details.open = true;
        Idiomorph.morph(details, folded("after"));
    }""")
    expect(page.locator("#past summary")).to_have_text("after")
    expect(page.locator("#past")).to_have_attribute("open", "")


def test_open_pages_say_that_server_or_store_is_away_and_go_on_when_they_are_back(
    browser: Browser, tmp_path: Path, free_port: int, start_redis: Callable[..., RedisServer], name: str
) -> None:
    # appendonly: the job must be there again when Redis is
    store = start_redis(appendonly="yes", appendfsync="always")
    with duetime.connect(store.url) as client:
        job = client.queue(name).later("1h", "watch me").id
    context = browser.new_context(locale="en-US")
    context.set_default_timeout(PATIENCE_MS)
    addresses = ["/console/", address("job", name, id=job), address("jobs", name, state="delayed")]
    pages = {one: context.new_page() for one in addresses}

    def all_say(words: str) -> None:
        for page in pages.values():
            expect(page.locator("#lost")).to_contain_text(words, timeout=PATIENCE_MS)
            expect(page.locator("#live-state")).to_have_text("Not live")

    def all_live() -> None:
        for page in pages.values():
            expect(page.locator("#live-state")).to_have_text("Live", timeout=PATIENCE_MS)
            expect(page.locator("#lost")).to_be_hidden()

    with serving(tmp_path, "--dev", store=store.url, admin_port=free_port) as server:
        for path, page in pages.items():
            page.goto(server.admin + path)
            page.evaluate("window.sameDocument = true")
        all_live()
        store.stop()
        all_say("The store does not answer (default)")
        store.start()
        all_live()
    all_say("The server does not answer")
    with serving(tmp_path, "--dev", store=store.url, admin_port=free_port) as server:
        all_live()
        badge = pages[addresses[1]].locator("#live .badge").first
        expect(badge).to_have_text("Delayed")
        with duetime.connect(server.api) as client:
            client.queue(name).reschedule(job, delay="0s")
        expect(badge).to_have_text("Ready", timeout=PATIENCE_MS)
        assert all(page.evaluate("window.sameDocument") for page in pages.values())
        context.close()


# --- what people come for, as they would do it


def test_the_cause_of_67_failures_is_two_clicks_away_and_exactly_they_are_retried_and_undone(
    watched: Callable[..., Watched], client: duetime.Client, name: str
) -> None:
    queue = client.queue(name)
    for number in range(70):
        queue.push({"n": number}, tries=1)
    for number, job in enumerate(queue.reserve(limit=70)):
        last = (
            f"shop.GatewayTimeout: no answer for order {52_000 + number} of {name}" if number < 67 else "KeyError: 'x'"
        )
        trace = f'Traceback (most recent call last):\n  File "/app/shop.py", line 3, in pay\n    call()\n{last}'
        client.release(job, error=trace)
    page = watched().page()
    page.goto("/console/")
    page.get_by_role("link", name="Failures").first.click()
    page.get_by_role("link", name=f"shop.GatewayTimeout: no answer for order N of {name}").first.click()
    expect(page.locator("#sample")).to_contain_text("shop.GatewayTimeout: no answer for order")
    page.get_by_role("link", name="Retry 67 jobs").click()
    expect(page.get_by_role("heading", name="Retry 67 jobs")).to_be_visible()
    page.get_by_role("button", name="Retry 67 jobs").click()
    expect(page.get_by_text("67 jobs queued for retry")).to_be_visible()
    assert (queue.status().counts.ready, queue.status().counts.dead) == (67, 3)
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_text("Undone for 67 jobs")).to_be_visible()
    assert (queue.status().counts.ready, queue.status().counts.dead) == (0, 70)
    queue.purge()


def test_a_finished_job_is_found_by_keyboard(
    watched: Callable[..., Watched], remote: duetime.Client, name: str
) -> None:
    job_id = remote.queue(name).push("done soon").id
    remote.queue(name).take("1m").ack()
    page = watched().page()
    page.goto("/console/queues")
    page.keyboard.press("/")
    page.keyboard.type(job_id)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=job_id)).to_contain_text("Done")
    page.keyboard.press("g")
    page.keyboard.press("f")
    expect(page.get_by_role("heading", name="Failures").first).to_be_visible()


def test_a_list_does_not_move_while_the_pointer_is_on_its_buttons(
    watched: Callable[..., Watched], client: duetime.Client, name: str
) -> None:
    queue = client.queue(name)

    def fail(error: str) -> None:
        queue.push("x", tries=1)
        for job in queue.reserve():
            client.release(job, error=error)

    fail(f"first {name}")
    pointed, other = watched().page(), watched().page()
    for page in (pointed, other):
        page.goto(address("failures", name))
        expect(page.get_by_text(f"first {name}").first).to_be_visible()
    button = pointed.get_by_role("row").filter(has_text=f"first {name}").get_by_role("link", name="Retry").first
    button.hover()
    fail(f"second {name}")
    expect(other.get_by_text(f"second {name}").first).to_be_visible()
    assert pointed.get_by_text(f"second {name}").count() == 0
    pointed.mouse.move(0, 0)
    expect(pointed.get_by_text(f"second {name}").first).to_be_visible()
    queue.purge()


def tab_to(page: Page, text: str) -> None:
    """Press Tab until a link or button with this text has the focus."""
    for _ in range(150):
        if page.evaluate("document.activeElement.matches('a, button') && document.activeElement.textContent") == text:
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"Tab does not reach {text!r}")


def test_failures_are_retried_and_brought_back_by_keyboard_alone(
    watched: Callable[..., Watched], client: duetime.Client, name: str
) -> None:
    queue = client.queue(name)
    for number in range(3):
        queue.push({"n": number}, tries=1)
    for job in queue.reserve(limit=3):
        client.release(job, error=f"GatewayTimeout: no answer of {name}")
    page = watched().page()
    page.goto("/console/")
    page.keyboard.press("g")
    page.keyboard.press("f")
    expect(page.get_by_role("heading", name="Failures").first).to_be_visible()
    for text, shown in (
        (f"GatewayTimeout: no answer of {name}", "Newest error"),
        ("Retry 3 jobs", "In 1 queue"),
        ("Retry 3 jobs", "3 jobs queued for retry"),
    ):
        tab_to(page, text)
        page.keyboard.press("Enter")
        expect(page.get_by_text(shown).first).to_be_visible()
    assert queue.status().counts.ready == 3
    tab_to(page, "Undo")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Undone for 3 jobs")).to_be_visible()
    assert queue.status().counts.dead == 3
    queue.purge()


def test_a_queue_is_paused_and_a_job_moved_and_deleted_by_keyboard_alone(
    watched: Callable[..., Watched], client: duetime.Client, name: str
) -> None:
    queue = client.queue(name)
    job_id = queue.later("1h", "x").id
    page = watched(timezone_id="Asia/Tokyo").page()
    page.goto(address("queue", name))
    tab_to(page, "Pause")
    page.keyboard.press("Enter")
    expect(page.get_by_text(f"Paused default/{name}")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type(job_id)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=job_id)).to_be_visible()
    tab_to(page, "Reschedule")  # the link to the form
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.type("tomorrow 09:00")
    page.keyboard.press("Enter")
    expect(page.get_by_text("is due at")).to_be_visible()
    due = datetime.fromtimestamp(queue.get(job_id).due_at / 1000, ZoneInfo("Asia/Tokyo"))
    assert (due.hour, due.minute) == (9, 0)
    page.locator("summary[aria-label=Actions]").focus()
    page.keyboard.press("Enter")
    tab_to(page, "Delete job")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("Delete this job?")
    page.keyboard.press("Tab")  # from Back to the button that deletes
    page.keyboard.press("Enter")
    expect(page.get_by_text("Deleted job")).to_be_visible()
    assert queue.status().counts.total == 0


def test_a_redis_is_added_to_a_group(
    watched: Callable[..., Watched], start_redis: Callable[..., RedisServer], tmp_path: Path
) -> None:
    first, second = start_redis(), start_redis()
    (tmp_path / "duetime.toml").write_text(
        f'[accounts]\n{ACCOUNT[0]} = "{hashed(ACCOUNT[1])}"\n[pool.shop]\nstores = {{ a = "{first.url}" }}\n'
    )
    with serving(tmp_path) as served:
        one = watched(served)
        page = one.page()
        page.goto("/console/stores")
        page.get_by_label("Name").fill("b")
        page.get_by_label("Address").fill(second.url)
        page.get_by_role("button", name="Add", exact=True).click()
        expect(page.get_by_text("It takes no new jobs yet.")).to_be_visible()
        expect(page.get_by_role("button", name="Take jobs again")).to_be_visible()  # without a reload of the page
        expect(page.get_by_text(f"redis://127.0.0.1:{second.port}/0", exact=True)).to_be_visible()
        page.close()
        # The live stream breaks off while the server applies its settings.
        one.wrong = [text for text in one.wrong if "[object Event]" not in text and "ERR_" not in text]


def test_a_schedule_is_explained_made_and_run(
    watched: Callable[..., Watched], client: duetime.Client, name: str
) -> None:
    page = watched().page()
    page.goto("/console/schedules")
    page.get_by_role("link", name="New schedule").click()
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("Schedule", exact=True).fill("0 9 * * mon-fri")
    expect(page.locator("#schedule-means")).to_contain_text("At 09:00 on Monday through Friday")
    page.get_by_label("Queue", exact=True).fill(name)
    page.get_by_label("Body").fill('{"kind": "daily"}')
    page.get_by_role("button", name="Create schedule").click()
    row = page.get_by_role("row").filter(has_text=name)
    row.get_by_role("button", name="Run now").click()
    expect(page.get_by_text(f"{name} runs now")).to_be_visible()
    expect(row.get_by_text("Ready")).to_be_visible()
    assert client.queue(name).status().counts.ready == 1
    client.schedules.delete(name)
    client.queue(name).purge()


def test_a_job_is_rescheduled_to_a_local_time_in_words(
    watched: Callable[..., Watched], client: duetime.Client, name: str
) -> None:
    zone = ZoneInfo("Asia/Tokyo")
    job_id = client.queue(name).later("1h", "x").id
    page = watched(timezone_id="Asia/Tokyo").page()
    page.goto(address("job", name, id=job_id))
    page.reload()  # the script has named the zone by then
    page.get_by_role("button", name="tomorrow 09:00").click()
    expect(page.locator("#means-when")).to_contain_text("09:00:00 Asia/Tokyo, in")
    page.get_by_role("button", name="Reschedule").click()
    expect(page.get_by_text("is due at")).to_be_visible()
    due = datetime.fromtimestamp(client.queue(name).get(job_id).due_at / 1000, zone)
    assert (due.hour, due.minute, (due.date() - datetime.now(zone).date()).days) == (9, 0, 1)


def test_a_paused_queue_is_named_and_a_question_is_asked_before_a_job_is_deleted(
    watched: Callable[..., Watched], client: duetime.Client, name: str
) -> None:
    queue = client.queue(name)
    job_id = queue.push("x", due_at="2026-01-01T00:00:00Z").id
    page = watched().page()
    page.goto(address("queue", name))
    page.get_by_role("button", name="Pause").click()
    page.goto("/console/")
    expect(page.get_by_text(f"default/{name} is paused, 1 job overdue")).to_be_visible()
    page.goto(address("job", name, id=job_id))
    page.locator("summary[aria-label=Actions]").click()
    page.get_by_role("button", name="Delete job").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Delete this job?")
    page.keyboard.press("Escape")
    assert queue.get(job_id).state == "ready"
    page.locator("summary[aria-label=Actions]").click()
    page.get_by_role("button", name="Delete job").click()
    dialog.get_by_role("button", name="Delete job").click()
    expect(page.get_by_text("Deleted job")).to_be_visible()
    assert queue.status().counts.total == 0


def test_a_topic_with_one_wrong_field_loses_nothing(watched: Callable[..., Watched], name: str) -> None:
    one = watched()
    page = one.page()
    page.goto("/console/topic-new")
    page.get_by_label("Key (the queue's name)").fill(name)
    page.get_by_label("Callback", exact=True).fill("http://127.0.0.1:9/notify")
    page.get_by_label("Timeout").fill("7s")
    page.get_by_label("Retry schedule").fill("now and then")
    page.get_by_role("button", name="Create topic").click()
    expect(page.locator("#error-schedule")).to_be_visible()
    expect(page.get_by_label("Timeout")).to_have_value("7s")
    page.get_by_label("Retry schedule").fill("1m,5m")
    expect(page.locator("#schedule-means")).to_contain_text("1 m, 5 m")
    page.get_by_role("button", name="Create topic").click()
    expect(page.get_by_role("heading", name=name)).to_be_visible()
    one.wrong = [text for text in one.wrong if "422" not in text]  # the browser's own word for a form that was refused
