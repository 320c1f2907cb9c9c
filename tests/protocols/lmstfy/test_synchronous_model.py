"""The synchronous model, with the very code of docs/lmstfy.md."""

import asyncio
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.protocols.lmstfy.client import Lmstfy
from tests.protocols.lmstfy.server import Server

PAGE = Path(__file__).parents[3] / "docs" / "lmstfy.md"


@pytest.fixture
async def example(lmstfy: Lmstfy) -> dict[str, Any]:
    """The functions of the example, pointed at the server and namespace of this test."""
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code.replace("shop/", f"{lmstfy.namespace}/"), str(PAGE), "exec"), names)
    names["SERVER"] = f"http://{lmstfy.api.host}:{lmstfy.api.port}"
    names["TOKEN"] = lmstfy.token
    return names


async def test_every_question_gets_its_own_answer(example: dict[str, Any], server: Server, lmstfy: Lmstfy) -> None:
    questions = [b"question %d" % number for number in range(8)]
    workers = [threading.Thread(target=example["answer_one"]) for _ in questions]
    for worker in workers:
        worker.start()
    answers = await asyncio.gather(*(asyncio.to_thread(example["ask"], question) for question in questions))
    assert answers == [question.upper() for question in questions]
    for worker in workers:
        await asyncio.to_thread(worker.join)
    counts = await server.counts(lmstfy.namespace)
    assert {name: one.total for name, one in counts.items() if one.total} == {}, "nothing is left behind"


async def test_the_admin_line_of_the_page_makes_the_token_that_clients_have(lmstfy: Lmstfy) -> None:
    [(form, token)] = re.findall(r"curl -d (description=\w+) -d token=(\w+) ", PAGE.read_text())
    body = f"{form}&token={token}".encode()
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    made = await lmstfy.admin.request("POST", f"/token/{lmstfy.namespace}", body=body, headers=headers)
    assert (made.status, made.json()) == (201, {"token": token})
