"""A Flask application: its configuration, its context around runs, and `flask duetime`."""

import json

from tests.frameworks.conftest import Program

SHOP = """
    import os
    from flask import Flask, current_app
    from duetime.frameworks.flask import make_app

    web = Flask(__name__)
    web.config.update(DUETIME_URL=os.environ["DUETIME_URL"], DUETIME_QUEUE="shop", SENDER="shop@example.com")
    del os.environ["DUETIME_URL"]
    jobs = make_app(web)

    def note(text):
        with open("sent", "a") as file:
            file.write(text + "\\n")

    @jobs.task
    def send(to: str) -> None:
        note(f"{current_app.config['SENDER']} to {to}")

    @jobs.task
    async def send_gently(to: str) -> None:
        note(f"{current_app.config['SENDER']} gently to {to}")

    @web.post("/orders/<to>")
    def order(to):
        return {"ids": [send.delay(to).id, send_gently.delay(to).id]}
"""

ORDER = """
    from shop import web
    with web.test_client() as client:
        print(client.post("/orders/ann").text)
"""


def test_an_application_pushes_and_works(program: Program) -> None:
    program.write("shop.py", SHOP)
    program.write("order.py", ORDER)
    assert len(json.loads(program.run("order.py"))["ids"]) == 2
    listed = json.loads(program.run("-m", "flask", "--app", "shop", "duetime", "queue", "list", "--json"))
    assert listed["queue"] == "shop"

    for pool in ("processes", "threads"):
        program.run("order.py")
        work = ("-m", "flask", "--app", "shop", "duetime", "work", "--pool", pool, "--stop-when-empty")
        program.run(*work)

    lines = (program.folder / "sent").read_text().splitlines()
    assert sorted(lines) == ["shop@example.com gently to ann"] * 3 + ["shop@example.com to ann"] * 3
