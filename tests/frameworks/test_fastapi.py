"""FastAPI: jobs instead of background tasks, and Pydantic models as their arguments."""

from datetime import date
from typing import Annotated

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic import BaseModel

import duetime
from duetime.frameworks.fastapi import BackgroundJobs, background_jobs
from duetime.testing import Box, in_memory


class Order(BaseModel):
    number: int
    day: date
    items: list[str] = []


jobs = duetime.App("redis://production.example/0")
SENT: list[object] = []


@jobs.task(name="receipt", result_ttl="1h")
def receipt(order: Order, copies: list[Order] | None = None) -> Order:
    SENT.append(order)
    return order.model_copy(update={"items": [*order.items, "receipt"]})


@jobs.task(name="check")
async def check(number: int) -> None:
    SENT.append(number)


web = FastAPI()


@web.post("/orders")
async def place(order: Order, background: Annotated[BackgroundJobs, background_jobs()]) -> str:
    background.add_task(receipt, order)
    background.add_task_later("5m", check, order.number)
    if order.number < 0:
        raise LookupError("no such order")
    return "accepted"


@pytest.fixture
def box() -> "Box":
    SENT.clear()
    with in_memory(jobs) as box:
        yield box


ORDER = {"number": 17, "day": "2030-01-02", "items": ["tea"]}


def test_jobs_of_a_request_are_there_when_it_is_answered(box: Box) -> None:
    with TestClient(web) as client:
        assert client.post("/orders", json=ORDER).json() == "accepted"
    box.assert_pushed(receipt, times=1)
    [later] = box.assert_pushed(check, number=17, times=1)
    assert later.due_at == box.now + 300_000
    box.run()
    assert SENT == [Order(number=17, day=date(2030, 1, 2), items=["tea"])]
    box.travel("5m")
    box.run()
    assert SENT[1:] == [17]


def test_a_request_that_fails_pushes_nothing(box: Box) -> None:
    with TestClient(web, raise_server_exceptions=False) as client:
        assert client.post("/orders", json={**ORDER, "number": -1}).status_code == 500
    box.assert_nothing_pushed()


def test_only_tasks_are_taken() -> None:
    with pytest.raises(duetime.InvalidRequest, match=r"background job must be a task of a duetime\.App"):
        BackgroundJobs().add_task(print, "hello")  # type: ignore[arg-type]


def test_models_arrive_as_models_and_so_do_results(box: Box) -> None:
    order = Order(number=1, day=date(2030, 1, 2))
    handle = receipt.delay(order, copies=[order])
    box.run()
    assert handle.get() == Order(number=1, day=date(2030, 1, 2), items=["receipt"])


def test_a_model_that_does_not_fit_is_refused_at_the_push(box: Box) -> None:
    with pytest.raises(duetime.InvalidRequest, match="arguments must fit receipt"):
        receipt.delay({"number": "many", "day": "2030-01-02"})  # type: ignore[arg-type]
    box.assert_nothing_pushed()
