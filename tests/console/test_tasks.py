"""The page Tasks: runs of each task, as the history in the registry has them."""

import time

from duetime.console.queue_history import TASKS_KIND
from duetime.stores.open import open_store
from tests.console.conftest import Visitor
from tests.plugins.serving import Served
from tests.plugins.until import until


async def test_tasks_and_the_charts_of_one(boss: Visitor, console_server: Served) -> None:
    assert "No task has run in this time" in boss.get("tasks").text
    assert "/console/tasks" in boss.get("workers").text
    now = time.time() - 30
    history = f'{{"default/default/shop.send":[[{now},600,{{"finished":1234,"failed":7}},[],[[0.5,1241]]]]}}'
    store = await open_store(f"sqlite://{console_server.log.parent}/jobs.db")
    await store.registry.put(TASKS_KIND, f"{int(now // 3600):07d}/other", history.encode())
    await store.close()
    await until(lambda: "shop.send" in boss.get("tasks").text, every_s=0.1)
    page = boss.get("tasks", history="week").text
    assert "1,234" in page
    assert "0.6 %" in page
    assert "/ 49" in page
    assert 'aria-sort="ascending"' in boss.get("tasks", history="week", sort="-failed").text
    one = boss.get("tasks", pool="default", namespace="default", task="shop.send", history="day").text
    assert one.count("data-chart=") == 2
    assert "No run of this task ended" in boss.get("tasks", pool="default", namespace="default", task="none").text
