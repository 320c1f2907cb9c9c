"""Pictures of every page of the console, for docs/console.md: `make screenshots`.

Starts a server of its own in a temporary folder, fills it with a small shop's jobs, and takes each page light, dark, on
a phone and in Chinese (which needs a font with Chinese characters, such as Debian's fonts-wqy-microhei).
"""

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
        "access": "/console/access",
    }


def shoot(page: Page, base: str, addresses: dict[str, str], suffix: str) -> None:
    for name, address in addresses.items():
        page.goto(base + address)
        page.wait_for_timeout(400)  # the script draws its charts
        page.screenshot(path=TARGET / f"{name}{suffix}.png")


def main() -> int:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        sys.stderr.write("screenshots: chromium is not installed\n")
        return 1
    TARGET.mkdir(parents=True, exist_ok=True)
    command = [str(Path(sys.executable).with_name("duetime")), "serve", "--dev", "--port", "0", "--admin-port", "0"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DUETIME_")}
    with tempfile.TemporaryDirectory() as folder:
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
            time.sleep(35)  # the charts need a few points
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
