"""What the doctor asks a Redis: does it keep jobs durably, and does it refuse writes instead of evicting jobs?

Reads CONFIG and INFO of every primary (one server, the one that Sentinels name, or all of a Cluster), and tries the
channels on which processes wake each other. Nothing is written.
"""

from collections.abc import Generator, Iterator
from typing import Any, cast

import redis
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import NoPermissionError
from redis.sentinel import Sentinel

from duetime.cli.doctor_checks import Check, Facts, Finding, fail, judge, ok, warn
from duetime.model.errors import StoreUnavailable
from duetime.model.humanise import size
from duetime.stores.redis.connect import parse_address

OLDEST = (6, 2)
TIMEOUT_S = 5.0
MUCH_MEMORY = 0.8
TOO_MUCH_MEMORY = 0.95

CHANNELS = ("dt:wake", "dt:registry")
PROBE = "duetime/doctor 32503680000000"
"""A wake for a queue without consumers, in the year 3000."""

NO_EVICTION = "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf"
APPEND_ONLY = "CONFIG SET appendonly yes, and the same in redis.conf"
THROWS_AWAY = "a full Redis throws jobs away in silence instead of refusing pushes"
REFUSES = "a full Redis refuses pushes (deliveries and acks go on)"
MAKE_ROOM = "raise maxmemory, delete old failed jobs, or move queues to another pool"

WRITES = {
    "aof_last_write_status": "append to its file",
    "aof_last_bgrewrite_status": "rewrite its append-only file",
    "rdb_last_bgsave_status": "save its last snapshot",
}

# fmt: off
CHECKS = (
    Check("redis.version",
        fail("{name} is Redis {redis_version}", when=lambda f: _numbers(f["redis_version"]) < OLDEST,
             why="Duetime's scripts use commands of Redis 6.2", fix="upgrade Redis to 6.2 or newer"),
        ok("{name} is Redis {redis_version}")),
    Check("redis.role",
        fail("{name} is a replica of {master_host}:{master_port}", when=lambda f: f["role"] != "master",
             why="a replica refuses every push, reserve and ack",
             fix="name the primary in the URL, or the Sentinels with redis+sentinel://"),
        ok("{name} is a primary")),
    Check("redis.maxmemory_policy",
        ok("{name} never evicts (maxmemory-policy noeviction)", when=lambda f: f["policy"] == "noeviction"),
        warn("{name} does not show its maxmemory-policy", when=lambda f: f["policy"] is None,
             why="with any other policy than noeviction a full Redis throws jobs away in silence",
             fix="check it in the provider's console; it must be noeviction"),
        fail("{name} has maxmemory-policy {policy}", when=lambda f: f["maxmemory"], why=THROWS_AWAY, fix=NO_EVICTION),
        warn("{name} has maxmemory-policy {policy}, without a maxmemory", why=f"once it has one, {THROWS_AWAY}",
             fix=NO_EVICTION)),
    Check("redis.memory",
        warn("{name} uses {used}, without a maxmemory", when=lambda f: not f["maxmemory"],
             why="it grows until the machine has none left and the system ends it",
             fix="set maxmemory to about 60 % of the machine's memory: a snapshot needs the rest"),
        ok("{name} uses {used} of {limit}", when=lambda f: f["used_memory"] < f["maxmemory"] * MUCH_MEMORY),
        warn("{name} uses {used} of {limit}", when=lambda f: f["used_memory"] < f["maxmemory"] * TOO_MUCH_MEMORY,
             why=REFUSES, fix=MAKE_ROOM),
        fail("{name} uses {used} of {limit}", why=REFUSES, fix=MAKE_ROOM)),
    Check("redis.persistence",
        warn("{name} has an append-only file, appendfsync no",
             when=lambda f: f["aof_enabled"] and f["appendfsync"] == "no",
             why="the system decides when it reaches the disk: a loss of power undoes up to half a minute",
             fix="CONFIG SET appendfsync everysec, or always"),
        ok("{name} has an append-only file, appendfsync always: a crash loses nothing",
           when=lambda f: f["aof_enabled"] and f["appendfsync"] == "always"),
        warn("{name} has an append-only file, appendfsync {appendfsync}", when=lambda f: f["aof_enabled"],
             why="a crash undoes the last second or two; the journal can refill it, acks are done again",
             fix="CONFIG SET appendfsync always, or accept that: `duetime pipeline reconcile` puts lost jobs back"),
        warn("{name} has no append-only file, only snapshots{if_any}",
             when=lambda f: f["save"] or not f["shows_config"],
             why="a crash undoes everything since the last snapshot; the journal can refill it, acks are done again",
             fix=APPEND_ONLY),
        fail("{name} keeps nothing on disk (no append-only file, no snapshots)", why="a restart loses every job",
             fix=APPEND_ONLY)),
    Check("redis.last_writes",
        fail("{name} could not {failed_write}", when=lambda f: "failed_write" in f,
             why="what it holds now does not survive a restart, and it may refuse pushes until it can",
             fix="read Redis's log; most often its disk is full or memory is missing for the fork"),
        ok("{name} wrote to its disk without error"),
        rows=lambda f: [{"failed_write": words} for key, words in WRITES.items() if f.get(key, "ok") != "ok"]),
    Check("redis.replicas",
        ok("{name} has {connected_slaves} replicas and writes only while one follows",
           when=lambda f: f["has_replicas"] and f["following"] > 0),
        warn("{name} has {connected_slaves} replicas, and min-replicas-to-write is 0", when=lambda f: f["has_replicas"],
             why="a primary that is cut off goes on accepting jobs that a failover then forgets",
             fix="CONFIG SET min-replicas-to-write 1; the journal's reconcile finds what a failover lost")),
    Check("redis.channels",
        fail(f"{{name}} refuses this user the channels {' and '.join(CHANNELS)}: {{refusal}}",
             when=lambda f: f["refusal"],
             why="waiting consumers are not woken: jobs come up to a second late, changed settings too",
             fix=f"ACL SETUSER <user> &{' &'.join(CHANNELS)} +publish +subscribe (its keys need ~dt:*)"),
        ok("{name} lets this user publish and subscribe to wakes")),
)
# fmt: on


def examine(url: str) -> Generator[Finding, None, bool]:
    """Raises StoreUnavailable if a primary does not answer."""
    try:
        read = [(name, _info(client), _config(client), _refusal(client)) for name, client in _primaries(url)]
    except redis.RedisError as error:
        raise StoreUnavailable(f"Redis does not answer: {error}") from error
    for name, info, config, refusal in read:
        yield from examine_facts(name, info, config, refusal)
    return True


def _primaries(url: str) -> list[tuple[str, Any]]:
    address = parse_address(url)
    shared: dict[str, Any] = {
        "socket_timeout": TIMEOUT_S,
        "socket_connect_timeout": TIMEOUT_S,
        "decode_responses": True,
        **({"ssl": True, **address.tls_files} if address.is_tls else {}),
    }
    login: dict[str, Any] = {**shared, "username": address.username, "password": address.password}
    match address.scheme:
        case "redis+cluster":
            cluster = RedisCluster(startup_nodes=[ClusterNode(*one) for one in address.hosts], **login)
            nodes: list[Any] = cast(Any, cluster).get_primaries()
            return [(node.name, cast(Any, cluster).get_redis_connection(node)) for node in nodes]
        case "redis+sentinel":
            asked = {**shared, "password": address.option("sentinel_password") or None}
            sentinels = cast(Any, Sentinel(address.hosts, sentinel_kwargs=asked))
            host, port = sentinels.discover_master(address.service)
        case _:
            host, port = address.hosts[0]
    return [(f"{host}:{port}", redis.Redis(host=host, port=port, **login))]


def _info(client: Any) -> Facts:
    return cast(Facts, client.info("everything"))


def _config(client: Any) -> Facts | None:
    """None if the server refuses it, as managed ones do."""
    try:
        return cast(Facts, client.config_get("*"))
    except redis.ResponseError:
        return None


def _refusal(client: Any) -> str:
    """Why this user may not publish or subscribe to wakes; empty if it may."""
    try:
        with client.pubsub() as listener:
            listener.subscribe(*CHANNELS)
            for _ in CHANNELS:
                listener.get_message(timeout=TIMEOUT_S)
        client.publish(CHANNELS[0], PROBE)
    except NoPermissionError as error:
        return str(error)
    return ""


def examine_facts(name: str, info: Facts, config: Facts | None, refusal: str = "") -> Iterator[Finding]:
    known = config or {}
    facts: dict[str, Any] = {
        "redis_version": "0",
        "role": None,
        "master_host": None,
        "master_port": None,
        "aof_enabled": 0,
        "connected_slaves": 0,
        **info,
        "name": name,
        "refusal": refusal,
        "used_memory": int(info.get("used_memory", 0)),
        "maxmemory": int(info.get("maxmemory", 0)),
        "policy": known.get("maxmemory-policy") or info.get("maxmemory_policy"),
        "appendfsync": known.get("appendfsync", "everysec"),
        "save": known.get("save"),
        "shows_config": config is not None,
        "if_any": "" if config else " if any",
        "has_replicas": bool(info.get("connected_slaves", 0)) and config is not None,
        "following": int(known.get("min-replicas-to-write", 0) or 0),
    }
    yield from judge(CHECKS, {**facts, "used": size(facts["used_memory"]), "limit": size(facts["maxmemory"])})


def _numbers(version: object) -> tuple[int, ...]:
    return tuple(int(part) for part in str(version).split(".")[:2] if part.isdigit())
