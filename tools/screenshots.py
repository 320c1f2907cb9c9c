"""Pictures of every page of the console, for docs/console.md: `make screenshots`.

Starts a server of its own in a temporary folder, fills it with a small shop's jobs, and takes each page light, dark, on
a phone and in Chinese (which needs a font with Chinese characters, such as Debian's fonts-wqy-microhei).

`python tools/screenshots.py --all FOLDER` takes many more, for a look at all of them: also forms, previews, errors and
empty pages, each at three widths, in both themes and both languages.
"""

import argparse
import itertools
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
from playwright.sync_api import Page, sync_playwright

import duetime
from duetime.client.topics import Topics

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "img"
FLAGS = ["--no-sandbox", "--disable-background-networking", "--hide-scrollbars"]
WIDE = {"width": 1440, "height": 900}
WHOLE = ("overview", "queue", "pipeline", "job", "topic", "failures", "stores", "alerts", "workers", "access")
"""Pages that are shown whole; of the others the first screen says enough."""
NARROW = {"width": 390, "height": 800}
WIDER = {"width": 1920, "height": 1080}
QUEUE = "pool=default&namespace=default&queue="


TASKS = """
import time

import duetime

app = duetime.App(\"{api}\")


@app.task(queue="images")
def resize(picture: str) -> None:
    job = duetime.current_job()
    job.log("reading", picture)
    for step in range(1, 49):
        job.log("tile", step, "of 48: 512 x 512")
        job.progress(step, 48)
        time.sleep(5)


@app.every("15m")
def refresh_rates() -> None: ...


@app.cron("0 9 * * mon-fri", tz="Asia/Shanghai")
def morning_report() -> None: ...
"""


TRACE = """Traceback (most recent call last):
  File "/app/.venv/lib/python3.13/site-packages/duetime/worker/execution.py", line 88, in run
    return task(*args)
  File "/app/shop/orders.py", line 41, in charge
    gateway.charge(order)
shop.gateway.GatewayTimeout: no answer from payments.internal for order {order}"""


ERRORS = (
    "smtp: 550 5.1.1 mailbox unavailable: <customer{number}@example.com>",
    "smtp: 421 4.7.0 too many connections from 10.0.0.{number}",
    """Traceback (most recent call last):
  File "/app/shop/mails.py", line 12, in welcome
    name = customer["name"]
KeyError: 'name'""",
)


class Receiver(BaseHTTPRequestHandler):
    """The shop's own service, which topics call; every ninth call fails, and every call about stock."""

    calls = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        Receiver.calls += 1
        fails = Receiver.calls % 9 == 0 or "stock" in self.path
        body = b'{"code": 500}' if fails else b'{"code": 200}'
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


class ReceiverServer(ThreadingHTTPServer):
    request_queue_size = 256  # all topics are called at the same moment


@contextmanager
def receiver() -> Iterator[str]:
    with ReceiverServer(("127.0.0.1", 0), Receiver) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def worker(api: str, folder: str) -> Iterator[None]:
    """A worker that runs as many jobs as it can, with tasks that recur and a batch."""
    Path(folder, "shop.py").write_text(TASKS.format(api=api))
    with duetime.connect(api) as client:
        client.schedules.put("month-end", queue="reports", cron="0 6 1 * *", tz="Europe/Berlin", body={"kind": "month"})
        client.schedules.run("month-end")
        data = {"displayName": None, "job": "shop.resize", "uuid": "1"}
        client.queue("images").bulk([{**data, "data": {"picture": f"A-{number}.png"}} for number in range(3)])
    batch = duetime.App(api).batch("Newsletter", queue="mail").open()
    with duetime.connect(api) as client:
        client.queue(batch.queue).bulk([{"to": f"customer{number}@example.com"} for number in range(40)], delay="1h")
        client.queue(batch.queue).bulk([{"to": f"customer{number}@example.com"} for number in range(60)])
        for job in client.queue(batch.queue).reserve(limit=50):
            client.ack(job)
    batch.close()
    command = [str(Path(sys.executable).with_name("duetime")), "work", "shop:app", "--concurrency", "2"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait(timeout=60)


def fill_mail(client: duetime.Client) -> None:
    mail = client.queue("mail")
    for number in range(60):
        mail.push({"to": f"customer{number}@example.com", "template": "welcome"})
    for job in mail.reserve(limit=40):
        client.ack(job)
    for number in range(23):
        mail.push({"to": f"customer{number}@example.com", "template": "receipt"}, tries=1)
    for number, job in enumerate(mail.reserve(limit=43)):
        if job.body.endswith(b'"receipt"}'):
            client.kill(job, error=ERRORS[number % 3 if number % 5 else 0].format(number=number))
        else:
            client.ack(job)


def fill(client: duetime.Client, shop: str) -> str:
    """A shop with orders, mails and reminders; answers the id of a job that has a story."""
    fill_mail(client)
    orders, reminders = client.queue("orders"), client.queue("reminders")
    for number in range(240):
        reminders.later(f"{(number * number) % 2700 + 700}s", {"customer": 1000 + number, "kind": "trial ends"})
    for number in range(9):
        orders.push({"order": 52000 + number})
    for number, job in enumerate(orders.reserve(limit=9)):
        client.kill(
            job, error=TRACE.format(order=52000 + number) if number < 6 else f"order {52000 + number}: no address"
        )
    story = orders.push({"order": 9007199254740993, "items": [{"sku": "A-17", "count": 2}]}, tries=3).id
    for job in orders.reserve():
        client.release(job, error=TRACE.format(order=9007199254740993), delay="10m")
    for number in range(5):
        orders.push({"order": 53000 + number})
    orders.reserve(limit=5, ttr="10m")
    invoices = client.queue("invoices")
    for number in range(18):
        invoices.push({"invoice": f"2026-{number:04}", "amount": "129.00", "currency": "EUR"})
    for key, name in (("order.paid", "Order paid"), ("trial.ends", "Trial ends"), ("stock.low", "")):
        Topics(client).add(key, f"{shop}/{key}", name=name, retry_if="{res.code} != 200", creator="ann")
        for number in range(30):
            Topics(client).add_job(key, {"order": str(52000 + number)})
    return story


def trade(client: duetime.Client, seconds: int) -> None:
    """The shop's day: jobs come in waves and are done, so that the charts have something to show."""
    for second in range(seconds):
        mail = client.queue("mail")
        mail.bulk([{"to": f"customer{number}@example.com"} for number in range(4 + (second * 7) % 11)])
        for job in mail.reserve(limit=100):
            if second % 9 == 4 and job.body.endswith(b'r3@example.com"}'):
                client.release(job, error="smtp: 421 try again later", delay="20m")
            else:
                client.ack(job)
        time.sleep(1)


def act(admin: str) -> None:
    """What the people of the shop did in the console: tokens, a user, rules."""
    queue = {"pool": "default", "namespace": "default", "queue": "reminders"}
    with httpx.Client(base_url=f"{admin}/console/do/", headers={"origin": admin}, timeout=60) as http:
        scopes = {"web": ["read", "write"], "billing": ["write"], "backoffice": ["read", "write", "admin"]}
        for name, may in scopes.items():
            http.post("add-token", data={"namespace": "default", "description": name, "scope": may}).raise_for_status()
        for name, role in (("ann", "operator"), ("bob", "viewer")):
            http.post("add-user", data={"name": name, "role": role, "password": "correct horse battery"})
        http.post("rules", data={**queue, "max_jobs": "100000", "strict": "on"})
        http.post("pause", data=queue)
        http.post("resume", data=queue)
        http.post("pause", data={**queue, "queue": "invoices"})
        http.post("add-address", data={"address": "ops@example.com"})


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
    write("batches/recall-2026-11/_progress/0", {"rows": 31_500})
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
    return {
        "overview": "",
        "queues": "queues",
        "queue": f"queue?{QUEUE}reminders",
        "jobs": f"jobs?{QUEUE}reminders&state=delayed",
        "job": f"job?{QUEUE}orders&id={story}",
        "failures": "failures",
        "batches": "batches",
        "schedules": "schedules",
        "topics": "topics",
        "topic": f"topic?{QUEUE}order.paid",
        "stores": "stores",
        "alerts": "alerts",
        "workers": "workers",
        "pipeline": "pipeline",
        "access": "access",
    }


def more_pages(story: str) -> dict[str, str]:
    return {
        "overview-month": "?span=month",
        "queue-paused": f"queue?{QUEUE}invoices",
        "queue-month": f"queue?{QUEUE}mail&history=month",
        "jobs-all": "jobs",
        "jobs-running": f"jobs?{QUEUE}orders&state=leased",
        "jobs-retrying": f"jobs?{QUEUE}mail&state=retrying",
        "jobs-dead": f"jobs?{QUEUE}orders&state=dead&sort=-attempt",
        "jobs-refused": f"jobs?{QUEUE}reminders&state=delayed&since=then",
        "jobs-none": f"jobs?{QUEUE}reminders&state=ready",
        "job-new": f"new?{QUEUE}reminders",
        "job-edit": f"new?{QUEUE}orders&mode=edit&id={story}",
        "bulk": f"bulk?{QUEUE}reminders&state=delayed&verb=reschedule",
        "failures-queue": f"failures?{QUEUE}orders",
        "failures-act": f"failures-act?{QUEUE}orders&verb=retry",
        "search-text": "search?q=customer3",
        "search-nothing": "search?q=nowhere",
        "search-empty": "search",
        "schedule-new": "schedule",
        "schedule-edit": "schedule?pool=default&namespace=default&name=month-end",
        "backfill": "backfill?pool=default&namespace=default&name=month-end",
        "topic-new": "topic-new",
        "topic-failing": f"topic?{QUEUE}stock.low",
        "tasks": "tasks",
        "mail": "mail",
        "audit": "audit",
        "error": "job?pool=default&namespace=default&queue=orders&id=none",
        "no-page": "nothing-here",
    }


EMPTY = ("", "queues", "jobs", "failures", "batches", "schedules", "topics", "stores", "alerts", "workers", "tasks",
         "pipeline", "access", "audit")  # fmt: skip


def shoot(page: Page, base: str, addresses: dict[str, str], suffix: str, folder: Path, *, whole: bool = False) -> None:
    for name, address in addresses.items():
        page.goto(f"{base}/console/{address}")
        page.wait_for_timeout(400)  # the script draws its charts
        usual = page.viewport_size
        assert usual is not None
        if whole or name in WHOLE:  # in a window of the page's height the menu is as tall as the page
            page.set_viewport_size({**usual, "height": page.evaluate("document.documentElement.scrollHeight")})
        page.screenshot(path=folder / f"{name}{suffix}.png")
        page.set_viewport_size(usual)


def looks(*, everything: bool) -> dict[str, dict[str, Any]]:
    """What the names of the pictures end in, and how they are taken."""
    if not everything:
        return {
            "": {"viewport": WIDE, "color_scheme": "light", "locale": "en-US"},
            "-dark": {"viewport": WIDE, "color_scheme": "dark", "locale": "en-US"},
            "-phone": {"viewport": NARROW, "color_scheme": "light", "locale": "en-US"},
            "-zh": {"viewport": WIDE, "color_scheme": "light", "locale": "zh-CN"},
        }
    return {
        f"-{size['width']}-{theme}-{locale[:2]}": {"viewport": size, "color_scheme": theme, "locale": locale}
        for size, theme, locale in itertools.product((NARROW, WIDE, WIDER), ("light", "dark"), ("en-US", "zh-CN"))
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", type=Path, metavar="FOLDER", help="take every page in every look, into this folder")
    target: Path | None = parser.parse_args().all
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        sys.stderr.write("screenshots: chromium is not installed\n")
        return 1
    (target or TARGET).mkdir(parents=True, exist_ok=True)
    command = [str(Path(sys.executable).with_name("duetime")), "serve", "--dev", "--port", "0", "--admin-port", "0"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DUETIME_")}
    with tempfile.TemporaryDirectory() as folder, receiver() as shop, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        environment["DUETIME_CALLBACK_ALLOW"] = "127.0.0.0/8"
        environment["DUETIME_LAKE"] = f"{folder}/lake"
        server = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True, env=environment)
        try:
            assert server.stdout is not None
            facts: dict[str, str] = {}
            for line in server.stdout:
                label, _, value = line.strip().partition(" ")
                facts[label] = value.strip()
                if label == "stop":
                    break

            def take(addresses: dict[str, str], suffix: str, options: dict[str, Any]) -> None:
                with browser.new_context(**options, timezone_id="Europe/Berlin") as context:
                    shoot(context.new_page(), facts["admin"], addresses, suffix, target or TARGET, whole=bool(target))

            if target:
                empty = {f"empty-{name or 'overview'}": name for name in EMPTY}
                for size in (NARROW, WIDE):
                    take(empty, f"-{size['width']}", {"viewport": size, "locale": "en-US"})
            fill_lake(Path(folder, "lake"))
            with duetime.connect(facts["API"]) as client:
                story = fill(client, shop)
                trade(client, 75)
            act(facts["admin"])
            with worker(facts["API"], folder):
                time.sleep(5)  # until the worker has its jobs
                addresses = {**pages(story), **(more_pages(story) if target else {})}
                for suffix, options in looks(everything=bool(target)).items():
                    take(addresses, suffix, options)
            browser.close()
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(timeout=60)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
