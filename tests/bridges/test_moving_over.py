"""Jobs of lmstfy and php-delayqueue, written into Redis as those systems write them, and the command line."""

import base64
import json
import signal
import struct
import subprocess
import time
import zlib
from pathlib import Path
from typing import Any

import pytest
import redis

import duetime
from duetime.bridges import delayqueue
from duetime.bridges import relay as relay_module
from duetime.bridges.delayqueue import DelayQueue
from duetime.bridges.foreign import ForeignQueues
from duetime.bridges.lmstfy import Lmstfy, LmstfyDeadLetters
from duetime.bridges.redisson import Redisson
from duetime.bridges.relay import BATCH, Relay, bury
from duetime.model.errors import QueueFull, StoreUnavailable
from duetime.model.names import Queue
from duetime.stores.base import RulesChange
from tests.bridges.laravel_peer import execute, own_database
from tests.bridges.two_relays import close_and_give_back, push_while_full
from tests.e2e.shell import Shell, program
from tests.plugins.processes import guard, release

SOON_S = int(time.time()) + 3600
LARGE = b"x" * (5 << 20)


@pytest.fixture
def theirs(redis_url: str) -> redis.Redis:
    return redis.Redis.from_url(redis_url)


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'ours.db'}"


@pytest.fixture
def shell(store: str, tmp_path: Path) -> Shell:
    return Shell(store, tmp_path)


def add_lmstfy(theirs: redis.Redis, job_id: str, stored: bytes, *, due_s: int | None = None, tries: int = 3) -> None:
    """As lmstfy does: body under a key with a time to live, id in a list or in the timer."""
    theirs.hset("m/ns", "shop", 1)
    theirs.hset("m/ns/shop", "mail", 1)
    theirs.set(f"j/shop/mail/{job_id}", stored, ex=7200)
    name = job_id.encode()
    if due_s is None:
        theirs.lpush("q/shop/mail", struct.pack(f"<HH{len(name)}s", tries, len(name), name))
    else:
        member = struct.pack(f"<H4sH4sHH{len(name)}s", 4, b"shop", 4, b"mail", tries, len(name), name)
        theirs.zadd("timer_set", {member: due_s})


def test_jobs_of_lmstfy_keep_id_body_due_time_tries_and_ttl(theirs: redis.Redis, redis_url: str, store: str) -> None:
    add_lmstfy(theirs, "0" * 25 + "A", b"plain")
    versioned = json.dumps({"body": base64.b64encode(b"new").decode(), "attributes": {"trace": "x"}}).encode()
    add_lmstfy(theirs, "1" + "0" * 25 + "B", versioned, due_s=SOON_S, tries=7)
    member = struct.pack("<H4sH5sHH1s", 4, b"shop", 5, b"other", 1, 1, b"x")
    theirs.zadd("timer_set", {member: SOON_S})
    lmstfy = Lmstfy(redis_url)
    assert lmstfy.names() == ["shop/mail"]
    sizes = lmstfy.sizes("shop/mail")
    assert (sizes.ready, sizes.delayed, sizes.oldest_due_at) == (1, 1, SOON_S * 1000)
    with duetime.connect(store, namespace="shop") as client:
        assert Relay(lmstfy, client).to_duetime("shop/mail", Queue("shop", "mail"), follow=False) == 2
        mail = client.queue("mail")
        ready, delayed = mail.get("0" * 25 + "A"), mail.get("1" + "0" * 25 + "B")
    assert (ready.body, ready.tries, ready.state) == (b"plain", 3, "ready")
    assert (delayed.body, delayed.tries, delayed.due_at) == (b"new", 7, SOON_S * 1000)
    assert delayed.attributes["trace"] == "x"
    assert 0 < delayed.expires_at - time.time() * 1000 <= 7_200_000
    assert theirs.zcard("timer_set") == 1  # another queue's
    assert theirs.keys("j/*") == theirs.keys("duetime_held*") == []
    lmstfy.close()


def test_messages_of_php_delayqueue_keep_topic_id_and_due_time(theirs: redis.Redis, redis_url: str, store: str) -> None:
    bucket = f"dq_bucket_{zlib.crc32(b'recall') % 2}"
    theirs.hset("dq_job_info", mapping={"recall:7:a": '{"n":1}', "recall:8": '{"n":2}', "other:1": "{}"})
    theirs.zadd(bucket, {"recall:7:a": SOON_S, "other:1": SOON_S})
    theirs.rpush("dq_2ready_queue", "recall:8")
    dq = DelayQueue(redis_url)
    assert dq.names() == ["other", "recall"]
    assert (dq.sizes("recall").ready, dq.sizes("recall").delayed) == (1, 1)
    with duetime.connect(store) as client:
        assert Relay(dq, client).to_duetime("recall", Queue("default", "recall"), follow=False) == 2
        assert client.queue("recall").get("7:a").due_at == SOON_S * 1000
        assert client.queue("recall").get("8").body == b'{"n":2}'
    assert theirs.hkeys("dq_job_info") == [b"other:1"]
    dq.close()


def test_a_relay_of_lmstfy_that_dies_before_the_end_of_a_batch_leaves_no_bodies(
    theirs: redis.Redis, redis_url: str, store: str
) -> None:
    """Bodies are deleted before the batch that would find them again."""
    add_lmstfy(theirs, "0" * 26, b"plain")
    lmstfy = Lmstfy(redis_url)

    def die(*_: object, **__: object) -> None:
        raise StoreUnavailable("killed")

    forget, lmstfy._redis.forget = lmstfy._redis.forget, die  # type: ignore[method-assign]
    with duetime.connect(store, namespace="shop") as client:
        with pytest.raises(StoreUnavailable, match="killed"):
            Relay(lmstfy, client)._fetch("shop/mail", Queue("shop", "mail"))
        assert theirs.keys("j/*") == []
        lmstfy._redis.forget = forget  # type: ignore[method-assign]
        assert Relay(lmstfy, client).to_duetime("shop/mail", Queue("shop", "mail"), follow=False) == 1
        assert client.queue("mail").counts().ready == 1
    assert theirs.keys("duetime_held*") == []
    lmstfy.close()


def test_a_job_in_its_last_run_stays_in_lmstfy_and_then_is_a_dead_letter(
    theirs: redis.Redis, redis_url: str, store: str, shell: Shell
) -> None:
    """lmstfy's default is one try: a job that its consumer holds must not run again here."""
    add_lmstfy(theirs, f"{1:026}", b"held", due_s=SOON_S, tries=0)
    add_lmstfy(theirs, f"{2:026}", b"over", due_s=SOON_S - 7200, tries=0)
    add_lmstfy(theirs, f"{3:026}", b"waits", due_s=SOON_S, tries=1)
    lmstfy = Lmstfy(redis_url)
    assert (lmstfy.sizes("shop/mail").delayed, lmstfy.sizes("shop/mail").reserved) == (1, 2)
    lmstfy.close()
    command = ["bridge", "import", "lmstfy", "--from", redis_url, "--url", store]
    ran = shell.run(*command, "--json")
    assert ran.code == 1
    assert [ran.document[name] for name in ("moved", "moved_dead", "left")] == [1, 1, 1]
    with duetime.connect(store, namespace="shop") as client:
        assert [job.body for job in client.queue("mail").dead.list_jobs().jobs] == [b"over"]
        assert [job.body for job in client.queue("mail").list_jobs("delayed").jobs] == [b"waits"]
    assert theirs.zcard("timer_set") == 1


def test_a_body_of_version_one_may_have_nothing(theirs: redis.Redis, redis_url: str, store: str) -> None:
    """Go writes null for what is empty."""
    for job_id, body in (("1" + "0" * 26, '{"body":"YQ==","attributes":null}'), ("1" * 27, '{"body":null}')):
        add_lmstfy(theirs, job_id, body.encode())
    lmstfy = Lmstfy(redis_url)
    batch = lmstfy.hold("shop/mail", 10)
    assert batch
    assert [(job.body, set(job.attributes)) for job in batch.jobs] == [(b"a", {"lmstfy.id"}), (b"", {"lmstfy.id"})]
    lmstfy.close()


def test_large_bodies_of_lmstfy_are_moved_in_small_batches(theirs: redis.Redis, redis_url: str, store: str) -> None:
    for n in range(7):
        add_lmstfy(theirs, f"{n:026}", b"x" * 400_000, due_s=SOON_S if n > 3 else None)
    lmstfy = Lmstfy(redis_url)
    batch = lmstfy.hold("shop/mail", 250)
    assert batch
    assert len(batch.jobs) == 3
    with duetime.connect(store, namespace="shop") as client:
        assert Relay(lmstfy, client).to_duetime("shop/mail", Queue("shop", "mail"), follow=False) == 7
        counts = client.queue("mail").counts()
    assert (counts.ready, counts.delayed) == (4, 3)
    lmstfy.close()


def test_expired_jobs_at_the_head_of_a_queue_of_lmstfy_hide_none_behind_them(
    theirs: redis.Redis, redis_url: str, store: str
) -> None:
    """lmstfy leaves the ids of deleted and expired jobs in its lists."""
    gone = [struct.pack("<HH26s", 1, 26, f"{n:026}".encode()) for n in range(2 * BATCH)]
    theirs.lpush("q/shop/mail", *gone)
    add_lmstfy(theirs, "A" * 26, b"alive")
    lmstfy = Lmstfy(redis_url)
    with duetime.connect(store, namespace="shop") as client:
        assert Relay(lmstfy, client).to_duetime("shop/mail", Queue("shop", "mail"), follow=False) == 1
    assert theirs.llen("q/shop/mail") == 0
    assert theirs.keys("duetime_held*") == []
    lmstfy.close()


def test_an_entry_of_lmstfy_that_nobody_can_read_loses_no_job_around_it(
    theirs: redis.Redis, redis_url: str, store: str
) -> None:
    add_lmstfy(theirs, f"{1:026}", b"before")
    theirs.lpush("q/shop/mail", b"\x01")
    add_lmstfy(theirs, f"{2:026}", b"after")
    add_lmstfy(theirs, f"{3:026}", b"later", due_s=SOON_S)
    cut = struct.pack("<H4sH4sHH", 4, b"shop", 4, b"mail", 1, 26)
    theirs.zadd("timer_set", {cut: SOON_S})
    lmstfy = Lmstfy(redis_url)
    with duetime.connect(store, namespace="shop") as client:
        assert Relay(lmstfy, client).to_duetime("shop/mail", Queue("shop", "mail"), follow=False) == 3
    assert theirs.lrange("duetime_held/shop/mail:unreadable", 0, -1) == [b"\x01", cut]
    assert lmstfy.sizes("shop/mail").total == 0
    lmstfy.close()


def test_messages_of_php_delayqueue_have_the_tries_of_their_topic_and_any_id(
    theirs: redis.Redis, redis_url: str, store: str
) -> None:
    """A job that is added over TCP has unlimited tries, because the topic's cap ends them. Ids may be too long here."""
    bucket = f"dq_bucket_{zlib.crc32(b'recall') % 5}"
    names = [b"recall:1", b"recall:" + b"x" * 200, b"recall:\xff", b"recall:\xfe"]
    theirs.hset("dq_job_info", mapping=dict.fromkeys(names, "{}"))
    theirs.zadd(bucket, dict.fromkeys(names, SOON_S))
    dq = DelayQueue(redis_url, buckets=5)
    with duetime.connect(store) as client:
        assert Relay(dq, client).to_duetime("recall", Queue("default", "recall"), follow=False) == 4
        jobs = client.queue("recall").list_jobs("delayed").jobs
    assert {job.tries for job in jobs} == {0}
    assert len({job.id for job in jobs}) == 4
    assert "1" in {job.id for job in jobs}
    dq.close()


def test_ready_messages_between_those_of_other_topics_are_moved_in_small_batches(
    theirs: redis.Redis, redis_url: str, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delayqueue, "PASSED", 5)
    for n in range(40):
        theirs.rpush("dq_1ready_queue", f"{'recall' if n % 4 == 3 else 'other'}:{n}")
    dq = DelayQueue(redis_url)
    batch = dq.hold("recall", 250)
    assert batch
    assert [job.id for job in batch.jobs] == ["3"]
    with duetime.connect(store) as client:
        assert Relay(dq, client).to_duetime("recall", Queue("default", "recall"), follow=False) == 10
    assert theirs.llen("dq_1ready_queue") == 30
    dq.close()


@pytest.mark.parametrize(("system", "scans"), [("lmstfy", 1), ("delayqueue", 2)])
def test_the_sizes_of_many_queues_take_one_scan(
    theirs: redis.Redis, redis_url: str, store: str, system: str, scans: int
) -> None:
    """The timer of lmstfy is shared by all queues, and so are the buckets of php-delayqueue."""
    for n in range(9):
        name = f"q{n}"
        theirs.hset("m/ns", "shop", 1)
        theirs.hset("m/ns/shop", name, 1)
        theirs.zadd("timer_set", {struct.pack("<H4sH2sHH1s", 4, b"shop", 2, name.encode(), 1, 1, b"a"): SOON_S + n})
        theirs.zadd(f"dq_bucket_{zlib.crc32(name.encode()) % 2}", {f"{name}:a": SOON_S + n})
    foreign = Lmstfy(redis_url) if system == "lmstfy" else DelayQueue(redis_url)
    names = foreign.names()
    theirs.config_resetstat()
    sizes = foreign.list_sizes(names)
    assert [(one.delayed, one.oldest_due_at) for one in sizes.values()] == [(1, (SOON_S + n) * 1000) for n in range(9)]
    assert theirs.info("commandstats")["cmdstat_zscan"]["calls"] == scans
    foreign.close()


def test_a_body_that_is_too_large_stays_in_lmstfy(theirs: redis.Redis, redis_url: str, store: str) -> None:
    names = [f"{n:026}" for n in range(3)]
    for name, body in zip(names, (b"a", LARGE, b"c"), strict=True):
        add_lmstfy(theirs, name, body, due_s=SOON_S, tries=4)
    before = theirs.zrange("timer_set", 0, -1, withscores=True)
    lmstfy, refused = Lmstfy(redis_url), list[str]()
    with duetime.connect(store, namespace="shop") as client:
        relay = Relay(lmstfy, client, refuse=lambda job, reason: refused.append(f"{job.id} {reason}"))
        assert relay.to_duetime("shop/mail", Queue("shop", "mail"), follow=False) == 2
        assert client.queue("mail").counts().delayed == 2
    assert theirs.zrange("timer_set", 0, -1, withscores=True) == before[1:2]
    assert theirs.keys("j/*") == [f"j/shop/mail/{names[1]}".encode()]
    assert len(refused) == 1
    assert refused[0].startswith(names[1])
    assert "bytes" in refused[0]
    lmstfy.close()


def test_a_job_behind_many_that_are_refused_is_moved_however_lmstfy_stores_them(
    theirs: redis.Redis, redis_url: str, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """lmstfy keeps a body as base64 in JSON, so what a batch holds is larger than the bodies of its jobs."""
    monkeypatch.setattr(relay_module, "HELD_BYTES", 10_000)
    refused = {"body": base64.b64encode(b"x" * 9_000).decode(), "attributes": {"": "no name"}}
    for n in range(30):
        add_lmstfy(theirs, f"1{n:025}B", json.dumps(refused).encode(), due_s=SOON_S + n)
    add_lmstfy(theirs, "0" * 25 + "A", b"plain", due_s=SOON_S + 100)
    lmstfy = Lmstfy(redis_url)
    with duetime.connect(store, namespace="shop") as client:
        assert Relay(lmstfy, client).to_duetime("shop/mail", Queue("shop", "mail"), follow=False) == 1
    assert theirs.zcard("timer_set") == 30
    lmstfy.close()


def test_a_body_that_is_too_large_stays_in_php_delayqueue(theirs: redis.Redis, redis_url: str, store: str) -> None:
    bucket = f"dq_bucket_{zlib.crc32(b'recall') % 2}"
    theirs.hset("dq_job_info", mapping={"recall:1": LARGE, "recall:2": "{}"})
    theirs.zadd(bucket, {"recall:1": SOON_S, "recall:2": SOON_S})
    dq = DelayQueue(redis_url)
    with duetime.connect(store) as client:
        assert Relay(dq, client).to_duetime("recall", Queue("default", "recall"), follow=False) == 1
    assert theirs.zrange(bucket, 0, -1, withscores=True) == [(b"recall:1", SOON_S)]
    assert theirs.hkeys("dq_job_info") == [b"recall:1"]
    dq.close()


def filled(system: str, theirs: redis.Redis, url: str) -> tuple[ForeignQueues, ForeignQueues, str]:
    """Two connections to a system with four jobs, and the name of its queue."""
    match system:
        case "lmstfy":
            for n in range(4):
                add_lmstfy(theirs, f"{n:026}", b"x")
            return Lmstfy(url), Lmstfy(url), "shop/mail"
        case "delayqueue":
            theirs.hset("dq_job_info", mapping={f"mail:{n}": "{}" for n in range(4)})
            theirs.rpush("dq_2ready_queue", *(f"mail:{n}" for n in range(4)))
            return DelayQueue(url), DelayQueue(url), "mail"
        case _:
            theirs.rpush("mail", "a", "b", "c", "d")
            return Redisson(url), Redisson(url), "mail"


@pytest.mark.parametrize("system", ["lmstfy", "delayqueue", "redisson"])
def test_a_batch_of_two_relays_is_pushed_once_although_the_queue_was_full(
    theirs: redis.Redis, redis_url: str, store: str, system: str
) -> None:
    first, second, queue = filled(system, theirs, redis_url)
    with duetime.connect(store) as client:
        push_while_full(first, second, queue, client)
    first.close()
    second.close()


@pytest.mark.parametrize("system", ["lmstfy", "delayqueue", "redisson"])
def test_a_refused_batch_of_two_relays_is_given_back_after_a_while(
    theirs: redis.Redis, redis_url: str, system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, queue = filled(system, theirs, redis_url)
    close_and_give_back(first, queue, monkeypatch)
    first.close()
    second.close()


def test_a_batch_that_one_store_of_a_group_took_in_part_is_not_given_back(theirs: redis.Redis, redis_url: str) -> None:
    count = 30  # 14 and 16 in the two stores
    theirs.hset("dq_job_info", mapping={f"mail:{n}": "{}" for n in range(count)})
    theirs.rpush("dq_2ready_queue", *(f"mail:{n}" for n in range(count)))
    dq, ours = DelayQueue(redis_url), Queue("default", "moved")
    with duetime.connect("group:test?a=memory:&b=memory:") as client:
        queue = client.queue("moved")
        queue.configure(RulesChange(max_jobs=count // 2))
        with pytest.raises(QueueFull, match="were pushed to other members"):
            Relay(dq, client).to_duetime("mail", ours, follow=False)
        while job := queue.pop():
            job.ack()
        queue.configure(RulesChange(max_jobs=0))
        Relay(dq, client).to_duetime("mail", ours, follow=False)
        assert queue.totals().running.accepted == count
    assert dq.sizes("mail").total == 0
    dq.close()


def test_the_command_line_relays_until_it_is_stopped(
    theirs: redis.Redis, redis_url: str, store: str, shell: Shell
) -> None:
    add_lmstfy(theirs, "0" * 25 + "A", b"first")
    add_lmstfy(theirs, "0" * 25 + "L", LARGE)
    command = ["bridge", "relay", "lmstfy", "--from", redis_url, "--queue", "shop/mail", "--namespace", "shop"]
    relay = subprocess.Popen(
        [*program(), *command], env=shell.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    guard(relay.pid)
    with duetime.connect(store, namespace="shop") as client:
        jobs = client.queue("mail").reserve(wait="60s")
        add_lmstfy(theirs, "0" * 25 + "B", b"second")
        jobs += client.queue("mail").reserve(wait="60s")
    relay.send_signal(signal.SIGTERM)
    out, err = relay.communicate(timeout=60)
    release(relay.pid)
    assert [job.body for job in jobs] == [b"first", b"second"]
    left = "1 are left there, 0 of them reserved; 1 were refused"
    assert (relay.returncode, out) == (0, f"2 jobs moved from shop/mail to shop/mail; {left}\n")
    assert f"job {'0' * 25}L was refused and stays in shop/mail: " in err


def test_the_command_line_lists_and_drains(theirs: redis.Redis, redis_url: str, store: str, shell: Shell) -> None:
    add_lmstfy(theirs, "0" * 25 + "A", b"plain")
    place = ["lmstfy", "--from", redis_url]
    listed = shell.run("bridge", "list", *place, "--json")
    assert listed.document == {
        "queue": "shop/mail", "ready": 1, "delayed": 0, "reserved": 0, "held": 0, "set_aside": 0, "oldest_due_at": None,
    }  # fmt: skip
    asked = shell.run("bridge", "drain", *place, "--queue", "shop/mail", "--dry-run", "--url", store)
    assert (asked.code, asked.out) == (0, "shop/mail: 1 ready, 0 delayed, 0 reserved\n")
    moved = shell.run("bridge", "drain", *place, "--queue", "shop/mail", "--url", store, "--namespace", "shop")
    assert (moved.code, moved.out) == (0, "1 jobs moved from shop/mail to shop/mail\n")
    again = shell.run("bridge", "drain", *place, "--queue", "shop/mail", "--url", store, "--json")
    assert (again.code, again.document["moved"]) == (0, 0)
    watched = shell.run("bridge", "watch", *place, "--count", "2", "--interval", "10ms", "--json")
    assert len(watched.out.splitlines()) == 2


def test_everything_of_lmstfy_is_imported_once(theirs: redis.Redis, redis_url: str, store: str, shell: Shell) -> None:
    add_lmstfy(theirs, "0" * 25 + "A", b"ready")
    add_lmstfy(theirs, "0" * 25 + "B", b"later", due_s=SOON_S)
    dead = "0" * 25 + "D"
    theirs.set(f"j/shop/mail/{dead}", b"died")
    theirs.lpush("d/shop/mail", struct.pack("<HH26s", 1, 26, dead.encode()))
    secret = "01F4CKPFY8XYVH6WVEQB3747CW"
    theirs.hset("tk/default/shop", secret, "the shop")
    theirs.hset("__throttler_keys__", f"default/shop/{secret}", '{"read":10,"write":20,"interval":60}')
    command = ["bridge", "import", "lmstfy", "--from", redis_url, "--settings-from", redis_url, "--url", store]
    before = {key: theirs.dump(key) for key in theirs.scan_iter()}
    planned = shell.ok(*command, "--dry-run")
    assert "1 tokens to create\n1 limits to create" in planned.err
    assert {key: theirs.dump(key) for key in theirs.scan_iter()} == before
    [done] = shell.json(*command)
    counts = ("found", "found_dead", "moved", "moved_dead", "left", "refused", "arrived", "verified")
    assert [done[name] for name in counts] == [2, 1, 2, 1, 0, 0, 3, True]
    [again] = shell.json(*command)
    assert [again[name] for name in counts] == [0, 0, 0, 0, 0, 0, 0, True]
    with duetime.connect(store, namespace="shop") as client:
        [letter] = client.queue("mail").dead.list_jobs().jobs
        assert (letter.id, letter.body, letter.tries) == (dead, b"died", 1)
        counts_here = client.queue("mail").counts()
        assert (counts_here.ready, counts_here.delayed, counts_here.dead) == (1, 1, 1)
    [token] = shell.json("token", "list", "--namespace", "shop")
    assert (token["description"], token["scopes"]) == ("the shop", ["admin", "read", "write"])
    [limit] = shell.json("limit", "list", "--namespace", "shop")
    assert (limit["label"], limit["read"], limit["write"], limit["every_s"]) == (token["label"], 10, 20, 60)
    assert theirs.keys("j/*") == theirs.keys("duetime_held*") == []


def test_an_import_of_dead_letters_that_was_killed_goes_on(theirs: redis.Redis, redis_url: str, store: str) -> None:
    theirs.set("j/shop/mail/dead", b"died")
    theirs.lpush("d/shop/mail", struct.pack("<HH4s", 1, 4, b"dead"))
    letters, ours = LmstfyDeadLetters(redis_url), Queue("shop", "mail")
    with duetime.connect(store, namespace="shop") as client:
        forget, letters.forget = letters.forget, lambda *_: None  # type: ignore[method-assign]
        Relay(letters, client, push=bury)._fetch("shop/mail", ours)
        letters.forget = forget  # type: ignore[method-assign]
        assert client.queue("mail").dead.delete(["dead"])
        assert Relay(letters, client, push=bury).to_duetime("shop/mail", ours, follow=False) == 1
        assert client.queue("mail").counts().total == 0
    letters.close()


TOPICS = """CREATE TABLE dq_topic (id INT AUTO_INCREMENT PRIMARY KEY, t_name VARCHAR(200), topic VARCHAR(200),
 delay INT DEFAULT 0, callback VARCHAR(500), method VARCHAR(10) DEFAULT 'GET', timeout INT DEFAULT 3000,
 re_notify_flag VARCHAR(500) DEFAULT 'label', email VARCHAR(500), priority INT DEFAULT 2, createor VARCHAR(100),
 status INT DEFAULT 1)"""


def test_topics_of_php_delayqueue_are_imported_from_its_database(
    theirs: redis.Redis, redis_url: str, mysql_server: Any, store: str, shell: Shell
) -> None:
    url = own_database(mysql_server.url)
    execute(
        url,
        [
            "DROP TABLE IF EXISTS dq_topic",
            TOPICS,
            "INSERT INTO dq_topic (t_name, topic, callback) VALUES ('Plain', 'plain', 'http://127.0.0.1/a')",
            "INSERT INTO dq_topic (t_name, topic, callback, delay, method, timeout, re_notify_flag, email, priority,"
            " createor, status) VALUES ('Recall', 'recall', 'http://127.0.0.1/b', 60, 'POST', 500, '{res.code} != 200',"
            " 'a@example.com, b@example.com', 1, 'ann', 2)",
            "INSERT INTO dq_topic (t_name, topic, callback) VALUES ('Bad', 'bad', 'ftp://127.0.0.1/a')",
        ],
    )
    theirs.hset("dq_job_info", "recall:7", '{"n":1}')
    theirs.zadd(f"dq_bucket_{zlib.crc32(b'recall') % 2}", {"recall:7": SOON_S})
    command = ["bridge", "import", "delayqueue", "--from", redis_url, "--settings-from", url, "--url", store]
    assert "3 topics to create" in shell.ok(*command, "--dry-run").err
    done = shell.ok(*command)
    assert "topic bad was refused: callback must be an http(s) URL" in done.err
    assert "2 topics created" in done.err
    topics = {one["topic"]: one for one in shell.json("topic", "list")}
    assert set(topics) == {"plain", "recall"}
    recall = topics["recall"]
    assert (recall["status"], recall["method"], recall["priority"]) == ("offline", "POST", "high")
    assert (recall["retry_if"], recall["success"], recall["php_fields"]) == ("{res.code} != 200", "body", True)
    assert recall["alert"] == ["a@example.com", "b@example.com"]
    assert topics["plain"]["retry_if"] == ""
    with duetime.connect(store) as client:
        assert client.queue("recall").get("7").due_at == SOON_S * 1000
    assert "0 topics created" in shell.ok(*command).err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["drain", "lmstfy", "--queue", "mail"], "lmstfy queue must be written namespace/queue, got 'mail'"),
        (["relay", "lmstfy", "--queue", "a/b", "--back"], "its clients work with Duetime's server"),
        (["list", "laravel", "--from", "http://x"], "must be postgresql://, mysql:// or sqlite:"),
        (["list", "redisson", "--from", "amqp://x"], "must begin with redis://"),
        (["list", "redisson", "--from", "redis://127.0.0.1:x"], "Redis URL redis://127.0.0.1:x is not valid"),
        (["list", "laravel", "--from", "mysql://127.0.0.1:x/a"], "database URL mysql://127.0.0.1:x/a is not valid"),
        (["watch", "laravel", "--count", "1", "--interval", "x"], "duration must be"),
        (["drain", "redisson", "--queue", "order:close"], "name the queue here with --to"),
        (["list", "sidekiq"], "is not one of"),
        (["import", "redisson", "--settings-from", "redis://x"], "must not be given for redisson"),
    ],
)
def test_mistakes_are_named(redis_url: str, store: str, shell: Shell, arguments: list[str], text: str) -> None:
    given = arguments if "--from" in arguments else [*arguments, "--from", redis_url]
    ran = shell.run("bridge", *given, "--url", store)
    assert (ran.code, ran.out) == (2, "")
    assert text in ran.err


def test_a_wrong_path_of_a_database_makes_no_file(shell: Shell, tmp_path: Path) -> None:
    ran = shell.run("bridge", "list", "laravel", "--from", f"sqlite:{tmp_path / 'typo.db'}")
    assert (ran.code, ran.out) == (3, "")
    assert "unable to open database file" in ran.err
    assert not (tmp_path / "typo.db").exists()


def test_a_queue_whose_name_is_not_allowed_here_does_not_stop_the_others(
    theirs: redis.Redis, redis_url: str, shell: Shell
) -> None:
    for name in ("order:close", "mail"):
        theirs.rpush(f"queues:{name}", '{"job":"A","attempts":0}')
    ran = shell.run("bridge", "import", "laravel", "--from", redis_url, "--json")
    assert ran.code == 1
    assert (ran.document["theirs"], ran.document["verified"]) == ("mail", True)
    assert "queue order:close stays there" in ran.err
    assert theirs.llen("queues:order:close") == 1
