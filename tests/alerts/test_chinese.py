# ruff: noqa: RUF001
"""Alerts in Chinese."""

import ast
import re
import time
from pathlib import Path

import pytest

import duetime
from duetime.alerts.chinese import in_chinese, sentences
from duetime.alerts.problems import TEST_TEXT, TEST_TITLE
from duetime.alerts.watchdog import _damaged, _down, _part_down
from duetime.model.names import Queue

SOURCE = Path(duetime.__file__).parent


def test_a_pool_that_is_down() -> None:
    problem = _down("eu", "no answer within 5 s")
    assert in_chinese(problem.title) == "存储池 eu 不可用"
    assert in_chinese(problem.text) == (
        "5 秒内没有应答. 新任务被拒绝，已有任务等待；已接受的任务不会丢失。其他存储池照常工作。"
    )
    assert in_chinese(f"over: {problem.title}") == "已恢复：存储池 eu 不可用"


@pytest.mark.parametrize("problem", [_damaged("eu", Queue("shop", "mail"), 3), _part_down("eu", "x")])
def test_no_english_word_is_left(problem: object) -> None:
    for text in (problem.title, problem.text):  # type: ignore[attr-defined]
        left = set(re.findall(r"[A-Za-z]{2,}", in_chinese(text)))
        assert left <= {"eu", "shop", "mail", "duetime", "doctor", "deep"}


def test_the_test_alert_is_translated() -> None:
    assert in_chinese(f"{TEST_TITLE}\n{TEST_TEXT}") == "Duetime: 测试警报\n这是一次测试，一切正常。"


def test_every_sentence_of_a_problem_is_in_the_table() -> None:
    """Reads the texts of all problems, so that a new one is not sent in English."""
    known = re.sub(r"\{\w+\}", "", "\n".join(sentences()))
    missing: list[str] = []
    for name in ("alerts/watchdog.py", "callbacks/failing_topics.py"):
        for call in ast.walk(ast.parse((SOURCE / name).read_text())):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Problem":
                parts = [one.value for one in ast.walk(call) if isinstance(one, ast.Constant)]
                words = [part.strip(" .\n") for text in parts if isinstance(text, str) for part in text.split("\n")]
                missing += [one for one in words if len(one) > 12 and "duetime " not in one and one not in known]
    assert missing == []


@pytest.mark.parametrize("repeated", ["a ", "x", "callbacks of ", "x gained ", "1 attempts in a row failed since "])
def test_translating_takes_time_linear_in_the_text(repeated: str) -> None:
    """The text of an alert holds what a receiver answered, and the body of a job."""
    began = time.process_time()
    in_chinese(repeated * (20_000 // len(repeated)))
    assert time.process_time() - began < 2


def test_names_with_spaces_and_long_queues_are_translated() -> None:
    queue = f"{'n' * 255}/{'q' * 255}"
    assert in_chinese(f"{queue} gained 3 dead letters") == f"{queue} 新增 3 个死信"
    assert in_chinese("callbacks of Order is paid fail") == "Order is paid 的回调失败"
