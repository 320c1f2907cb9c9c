"""Loads into a Redis that asks who is there, speaks TLS, is a Cluster, or hangs up in the middle."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from duetime.model.errors import DuetimeError, StoreUnavailable
from duetime.model.job import Delivery
from duetime.spark import schedule
from duetime.spark.load.options import read_options
from tests.plugins.redis_server import RedisServer
from tests.plugins.redis_topologies import RedisCluster

ROWS = 200
SECRET = "opensesame"
USER = f"loader on >{SECRET} ~dt:* &dt:* +@all"
LOOK_EVERY_S = 0.03

Drain = Callable[[str, str, str], list[Delivery]]
Load = Callable[..., None]


def members(spark: SparkSession, count: int = ROWS) -> DataFrame:
    return spark.range(0, count, 1, 2).select(
        F.format_string("recall-%06d", "id").alias("id"), F.to_json(F.struct("id")).alias("body")
    )


@pytest.fixture(params=["save", "schedule"])
def load(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Load:
    """Loads so many rows into the queue crm/recall, by one of the two ways."""

    def save(url: str, count: int = ROWS, **options: str) -> None:
        settings = {"url": url, "namespace": "crm", "queue": "recall", **options}
        members(spark, count).write.format("duetime").options(**settings).mode("append").save()

    def push(url: str, count: int = ROWS, **options: str) -> None:
        where = {"url": url, "namespace": "crm", "queue": "recall", "batch": "b1", "lake": str(tmp_path / "lake")}
        done = schedule(members(spark, count), **where, **options)  # type: ignore[arg-type]
        assert (done.rows, done.accepted, done.bad) == (count, count, 0)

    return save if request.param == "save" else push


def ids_of(deliveries: list[Delivery]) -> list[str]:
    return sorted(one.lease.id for one in deliveries)


def expected(count: int = ROWS) -> list[str]:
    return [f"recall-{index:06}" for index in range(count)]


def test_a_password(load: Load, start_redis: Callable[..., RedisServer], drain: Drain) -> None:
    url = start_redis(requirepass=SECRET).url
    load(url)

    assert ids_of(drain(url, "crm", "recall")) == expected()


def test_a_user_of_an_access_list(load: Load, start_redis: Callable[..., RedisServer], drain: Drain) -> None:
    server = start_redis(user=USER)
    url = f"redis://loader:{SECRET}@127.0.0.1:{server.port}/0"
    load(url)

    assert ids_of(drain(url, "crm", "recall")) == expected()


@pytest.mark.parametrize(
    ("who", "why"), [("loader:wrongword", "WRONGPASS"), ("nobody:wrongword", "WRONGPASS"), ("", "NOAUTH")]
)
def test_who_is_not_let_in_pushes_nothing(
    load: Load, start_redis: Callable[..., RedisServer], who: str, why: str
) -> None:
    server = start_redis(user=USER, requirepass=SECRET)
    with pytest.raises((DuetimeError, PySparkException), match=why) as raised:
        load(f"redis://{who}{'@' if who else ''}127.0.0.1:{server.port}/0")

    assert "wrongword" not in str(raised.value)
    with redis.Redis.from_url(server.url) as client:
        assert client.dbsize() == 0


def test_schedule_says_who_was_refused_where(
    spark: SparkSession, start_redis: Callable[..., RedisServer], tmp_path: Path
) -> None:
    server = start_redis(user=USER)
    url = f"redis://loader:wrongword@127.0.0.1:{server.port}/0"
    with pytest.raises(StoreUnavailable) as raised:
        schedule(members(spark), url=url, queue="recall", batch="b1", lake=str(tmp_path / "lake"))

    assert raised.value.message.startswith(f"Redis cannot be reached: 127.0.0.1:{server.port}: WRONGPASS")


@pytest.mark.parametrize("clients", ["no", "yes"])
def test_tls(load: Load, tls_port: Callable[..., int], certificate: Path, drain: Drain, clients: str) -> None:
    """The CA, and where Redis asks for it a certificate, are files that every executor can read."""
    own = f"&cert={certificate}&key={certificate.with_name('key.pem')}" if clients == "yes" else ""
    url = f"rediss://localhost:{tls_port(clients)}/0?ca={certificate}{own}"
    load(url, timeout="20s")

    assert ids_of(drain(url, "crm", "recall")) == expected()


def test_a_server_that_nobody_vouches_for_gets_nothing(load: Load, tls_port: Callable[..., int]) -> None:
    with pytest.raises((DuetimeError, PySparkException), match="CERTIFICATE_VERIFY_FAILED"):
        load(f"rediss://localhost:{tls_port('no')}/0")


def test_a_cluster(load: Load, redis_cluster: RedisCluster, drain: Drain) -> None:
    load(redis_cluster.url)

    assert ids_of(drain(redis_cluster.url, "crm", "recall")) == expected()


def test_connections_that_are_killed_under_way(load: Load, redis_url: str, drain: Drain) -> None:
    """Again and again while rows come at a pace; each is a job once."""
    count = 6_000
    with hanging_up(redis_url) as killed:
        load(redis_url, count, max_jobs_per_second="6000", writers="2")

    assert killed
    assert ids_of(drain(redis_url, "crm", "recall")) == expected(count)


@contextmanager
def hanging_up(url: str) -> Iterator[list[int]]:
    """Ends all connections that are loading, as often as there are some; answers how many each time."""
    killed: list[int] = []
    stop = threading.Event()

    def hang_up() -> None:
        with redis.Redis.from_url(url) as client:
            while not stop.wait(LOOK_EVERY_S):
                if any(one["cmd"].startswith(("evalsha", "fcall")) for one in client.client_list(_type="normal")):
                    killed.append(int(client.client_kill_filter(_type="normal", skipme=True)))

    thread = threading.Thread(target=hang_up)
    thread.start()
    try:
        yield killed
    finally:
        stop.set()
        thread.join()


def test_secrets_are_not_shown(
    spark: SparkSession, start_redis: Callable[..., RedisServer], capsys: pytest.CaptureFixture[str]
) -> None:
    url = start_redis(requirepass=SECRET).url
    options = {"url": url, "token": "sesame-token", "queue": "recall"}

    assert repr(read_options(options)) == repr(read_options({**options, "token": "x", "url": url.replace(SECRET, "y")}))
    frame = spark.read.format("duetime").options(**options).load().where("queue = 'recall'")
    frame.explain(extended=True)
    shown = capsys.readouterr().out
    assert "duetime" in shown.lower()
    assert SECRET not in shown
    assert "sesame-token" not in shown
