"""Pictures of every page of the console, for docs/console.md: `make screenshots`.

Starts a server of its own in a temporary folder, fills it with a small shop's jobs, and takes each page light, dark, on
a phone and in Chinese (which needs a font with Chinese characters, such as Debian's fonts-wqy-microhei).
"""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

import duetime
from duetime.client.topics import Topics

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "img"
FLAGS = ["--no-sandbox", "--disable-background-networking", "--hide-scrollbars"]
WIDE = {"width": 1280, "height": 860}
WHOLE = ("overview", "pipeline", "job", "topic")
"""Pages that are shown whole; of the others the first screen says enough."""
NARROW = {"width": 390, "height": 800}


def fill(client: duetime.Client) -> str:
    """A shop with orders, mails and reminders; answers the id of a job that has a story."""
    mail, orders, reminders = (client.queue(name) for name in ("mail", "orders", "reminders"))
    for number in range(240):
        reminders.later(f"{(number * number) % 3000 + 20}s", {"customer": 1000 + number, "kind": "trial ends"})
    for number in range(60):
        mail.push({"to": f"customer{number}@example.com", "template": "welcome"})
    for job in mail.reserve(limit=40):
        client.ack(job)
    for number in range(9):
        orders.push({"order": 52000 + number})
    for number, job in enumerate(orders.reserve(limit=9)):
        client.kill(job, error="payment service: 503" if number < 6 else f"order {52000 + number} has no address")
    story = orders.push({"order": 9007199254740993, "items": [{"sku": "A-17", "count": 2}]}, tries=3).id
    for job in orders.reserve():
        client.release(job, error="payment service: timeout", delay="10m")
    for number in range(5):
        orders.push({"order": 53000 + number})
    orders.reserve(limit=2, ttr="10m")
    for key, name in (("order.paid", "Order paid"), ("trial.ends", "Trial ends")):
        Topics(client).add(key, f"https://shop.example.com/{key}", name=name, retry_if="{res.code} != 200")
    return story


def trade(client: duetime.Client, seconds: int) -> None:
    """The shop's day: jobs come in waves and are done, so that the charts have something to show."""
    for second in range(seconds):
        mail = client.queue("mail")
        mail.bulk([{"to": f"customer{number}@example.com"} for number in range(4 + (second * 7) % 11)])
        for job in mail.reserve(limit=4 + (second * 5) % 9):
            if second % 9 == 4:
                client.release(job, error="smtp: 421 try again later", delay="20m")
            else:
                client.ack(job)
        time.sleep(1)


def fill_lake(lake: Path) -> None:
    """What the pipelines would have left behind."""
    now = int(time.time() * 1000)

    def write(path: str, content: object) -> None:
        file = lake / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content) if not isinstance(content, str) else content)

    spring = {"namespace": "default", "rows": 1_200_000, "accepted": 1_199_412, "kept": 573, "bad": 15, "seconds": 11.3}
    write("batches/spring-campaign/_manifest", {**spring, "finished_at": now - 7_200_000})
    write("batches/recall-2026-11/_accepted", {"rows": 48_000, "bad": 0, "at": now - 60_000})
    write("batches/recall-2026-11/_pushing", {"at": now - 45_000})
    audit = {"run": "1", "at": now - 600_000, "is_sound": True, "accepted": 1_247_982, "found": {"unanswered": 3}}
    write("audit/1/summary.json", audit)
    reconcile = {"run": "1", "dry_run": False, "lost": 212, "scanned_at": now - 86_400_000}
    write("reconcile/1/summary.json", {**reconcile, "counts": {"pushed": 209, "present": 3}})
    hours = [round(900 + 700 * math.sin(at / 15)) for at in range(96)]
    forecast = {"written_at": now - 600_000, "start_at": now, "step_ms": 900_000, "target_ms": 60_000}
    write("forecast/1/summary.json", {**forecast, "pending": hours, "expected": [value / 3 for value in hours]})
    steps = {
        name: {"seconds": took} for name, took in {"ingest": 8.1, "lifecycle": 11.4, "stats": 3.2, "audit": 19}.items()
    }
    last = {"number": 96, "started_at": now - 650_000, "ended_at": now - 600_000, "ok": True}
    write("health.json", {**last, "next_at": now + 250_000, "steps": steps})
    write("reports/week-46.html", "<title>Week 46</title>" + " " * 400_000)


def pages(story: str) -> dict[str, str]:
    queue = "pool=default&namespace=default&queue="
    return {
        "overview": "/console/",
        "queues": "/console/queues",
        "queue": f"/console/queue?{queue}reminders",
        "jobs": f"/console/jobs?{queue}reminders&state=delayed",
        "job": f"/console/job?{queue}orders&id={story}",
        "dead": f"/console/dead?{queue}orders",
        "topics": "/console/topics",
        "topic": f"/console/topic?{queue}order.paid",
        "pools": "/console/pools",
        "workers": "/console/workers",
        "pipeline": "/console/pipeline",
        "access": "/console/access",
    }


def shoot(page: Page, base: str, addresses: dict[str, str], suffix: str) -> None:
    for name, address in addresses.items():
        page.goto(base + address)
        page.wait_for_timeout(400)  # the script draws its charts
        page.screenshot(path=TARGET / f"{name}{suffix}.png", full_page=name in WHOLE)


def main() -> int:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        sys.stderr.write("screenshots: chromium is not installed\n")
        return 1
    TARGET.mkdir(parents=True, exist_ok=True)
    command = [str(Path(sys.executable).with_name("duetime")), "serve", "--dev", "--port", "0", "--admin-port", "0"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DUETIME_")}
    with tempfile.TemporaryDirectory() as folder:
        environment["DUETIME_LAKE"] = f"{folder}/lake"
        fill_lake(Path(folder, "lake"))
        server = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True, env=environment)
        try:
            assert server.stdout is not None
            facts: dict[str, str] = {}
            for line in server.stdout:
                label, _, value = line.strip().partition(" ")
                facts[label] = value.strip()
                if label == "stop":
                    break
            with duetime.connect(facts["API"]) as client:
                story = fill(client)
                trade(client, 75)
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
                for suffix, options in {
                    "": {"viewport": WIDE, "color_scheme": "light", "locale": "en-US"},
                    "-dark": {"viewport": WIDE, "color_scheme": "dark", "locale": "en-US"},
                    "-phone": {"viewport": NARROW, "color_scheme": "light", "locale": "en-US"},
                    "-zh": {"viewport": WIDE, "color_scheme": "light", "locale": "zh-CN"},
                }.items():
                    page = browser.new_context(**options).new_page()  # pyright: ignore
                    shoot(page, facts["admin"], pages(story), suffix)
                browser.close()
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(timeout=60)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
