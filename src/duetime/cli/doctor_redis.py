"""What the doctor asks a Redis: does it keep what it is given, and does it say no instead of throwing jobs away?

Reads CONFIG and INFO of every primary (one server, the one that Sentinels name, or all of a Cluster), and tries the
channels on which processes wake each other. Nothing is written.
"""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from duetime.cli.doctor_findings import Finding, fail, ok, size, warn
from duetime.errors import InvalidSettings, StoreUnavailable

OLDEST = (6, 2)
TIMEOUT_S = 5.0
MUCH_MEMORY = 0.8
TOO_MUCH_MEMORY = 0.95

CHANNELS = ("dt:wake", "dt:registry")
PROBE = "duetime/doctor 32503680000000"
"""A wake for a queue that nobody waits for, in the year 3000."""

Facts = Mapping[str, Any]


def examine_redis(url: str) -> Iterator[Finding]:
    """Raises StoreUnavailable if it does not answer."""
    for name, info, config, refusal in read_primaries(url):
        yield from examine_facts(name, info, config)
        yield examine_channels(name, refusal)


def read_primaries(url: str) -> list[tuple[str, Facts, Facts | None, str]]:
    """(address, INFO, CONFIG, why the channels are refused) of each primary; no CONFIG where the server refuses it, as
    managed ones do.
    """
    try:
        import redis  # noqa: PLC0415 (an optional driver)
    except ModuleNotFoundError:
        raise InvalidSettings("redis:// needs the extra duetime[redis]") from None
    try:
        return [(name, _info(client), _config(client), _refusal(client)) for name, client in _primaries(url)]
    except redis.RedisError as error:
        raise StoreUnavailable(f"Redis does not answer: {error}") from error


def _primaries(url: str) -> list[tuple[str, Any]]:
    import redis  # noqa: PLC0415
    from redis.cluster import ClusterNode, RedisCluster  # noqa: PLC0415
    from redis.sentinel import Sentinel  # noqa: PLC0415

    from duetime.stores.redis.connect import parse_address  # noqa: PLC0415 (it needs the driver)

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
    import redis  # noqa: PLC0415

    try:
        return cast(Facts, client.config_get("*"))
    except redis.ResponseError:
        return None


def _refusal(client: Any) -> str:
    """Why this user may not announce or hear what is due; empty if it may."""
    from redis.exceptions import NoPermissionError  # noqa: PLC0415

    try:
        with client.pubsub() as listener:
            listener.subscribe(*CHANNELS)
            for _ in CHANNELS:
                listener.get_message(timeout=TIMEOUT_S)
        client.publish(CHANNELS[0], PROBE)
    except NoPermissionError as error:
        return str(error)
    return ""


# --- what the facts mean


def examine_facts(name: str, info: Facts, config: Facts | None) -> Iterator[Finding]:
    yield _version(name, info)
    yield _role(name, info)
    yield _eviction(name, info, config)
    yield _memory(name, info)
    yield _persistence(name, info, config)
    yield from _last_writes(name, info)
    if info.get("connected_slaves", 0) and config is not None:
        yield _replicas(name, info, config)


def examine_channels(name: str, refusal: str) -> Finding:
    if not refusal:
        return ok("redis.channels", f"{name} lets this user announce and hear what is due")
    channels = " ".join(f"&{channel}" for channel in CHANNELS)
    return fail(
        "redis.channels",
        f"{name} refuses this user the channels {' and '.join(CHANNELS)}: {refusal}",
        why="waiting consumers are not woken: jobs come up to a second late, changed settings too",
        fix=f"ACL SETUSER <user> {channels} +publish +subscribe (its keys need ~dt:*)",
    )


def _version(name: str, info: Facts) -> Finding:
    text = str(info.get("redis_version", "0"))
    numbers = tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
    if numbers < OLDEST:
        return fail(
            "redis.version",
            f"{name} is Redis {text}",
            why="Duetime's scripts use commands of Redis 6.2",
            fix="upgrade Redis to 6.2 or newer",
        )
    return ok("redis.version", f"{name} is Redis {text}")


def _role(name: str, info: Facts) -> Finding:
    if info.get("role") == "master":
        return ok("redis.role", f"{name} is a primary")
    return fail(
        "redis.role",
        f"{name} is a replica of {info.get('master_host')}:{info.get('master_port')}",
        why="a replica refuses every push, reserve and ack",
        fix="name the primary in the URL, or the Sentinels with redis+sentinel://",
    )


def _eviction(name: str, info: Facts, config: Facts | None) -> Finding:
    policy = (config or {}).get("maxmemory-policy") or info.get("maxmemory_policy")
    if policy == "noeviction":
        return ok("redis.maxmemory_policy", f"{name} never evicts (maxmemory-policy noeviction)")
    if policy is None:
        return warn(
            "redis.maxmemory_policy",
            f"{name} does not tell its maxmemory-policy",
            why="with any other policy than noeviction a full Redis throws jobs away in silence",
            fix="look it up in the console of whoever runs this Redis; it must be noeviction",
        )
    why = "a full Redis throws jobs away in silence instead of refusing pushes"
    fix = "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf"
    what = f"{name} has maxmemory-policy {policy}"
    if info.get("maxmemory", 0):
        return fail("redis.maxmemory_policy", what, why=why, fix=fix)
    return warn("redis.maxmemory_policy", f"{what}, without a maxmemory", why=f"once it has one, {why}", fix=fix)


def _memory(name: str, info: Facts) -> Finding:
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if not limit:
        return warn(
            "redis.memory",
            f"{name} uses {size(used)}, without a maxmemory",
            why="it grows until the machine has none left and the system ends it",
            fix="set maxmemory to about 60 % of the machine's memory: a snapshot needs the rest",
        )
    what = f"{name} uses {size(used)} of {size(limit)}"
    if used < limit * MUCH_MEMORY:
        return ok("redis.memory", what)
    made = fail if used >= limit * TOO_MUCH_MEMORY else warn
    return made(
        "redis.memory",
        what,
        why="a full Redis refuses pushes (deliveries and acks go on)",
        fix="raise maxmemory, prune dead letters, or move queues to another pool",
    )


def _persistence(name: str, info: Facts, config: Facts | None) -> Finding:
    check = "redis.persistence"
    if info.get("aof_enabled"):
        fsync = (config or {}).get("appendfsync", "everysec")
        if fsync == "no":
            return warn(
                check,
                f"{name} has an append-only file, appendfsync no",
                why="the system decides when it reaches the disk: a loss of power undoes up to half a minute",
                fix="CONFIG SET appendfsync everysec, or always",
            )
        loss = "nothing" if fsync == "always" else "at most the last second or two"
        return ok(check, f"{name} has an append-only file, appendfsync {fsync}: a crash loses {loss}")
    if config is None or (config or {}).get("save"):
        return warn(
            check,
            f"{name} has no append-only file, only snapshots" + ("" if config else " if any"),
            why="a crash undoes everything since the last snapshot; the journal can refill it, acks are done again",
            fix="CONFIG SET appendonly yes, and the same in redis.conf",
        )
    return fail(
        check,
        f"{name} keeps nothing on disk (no append-only file, no snapshots)",
        why="a restart loses every job",
        fix="CONFIG SET appendonly yes, and the same in redis.conf",
    )


def _last_writes(name: str, info: Facts) -> Iterator[Finding]:
    statuses = {
        "aof_last_write_status": "append to its file",
        "aof_last_bgrewrite_status": "rewrite its append-only file",
        "rdb_last_bgsave_status": "save its last snapshot",
    }
    failed = [words for key, words in statuses.items() if info.get(key, "ok") != "ok"]
    if not failed:
        yield ok("redis.last_writes", f"{name} wrote to its disk without error")
    for words in failed:
        yield fail(
            "redis.last_writes",
            f"{name} could not {words}",
            why="what it holds now does not survive a restart, and it may refuse pushes until it can",
            fix="look into Redis's log; most often its disk is full or memory is missing for the fork",
        )


def _replicas(name: str, info: Facts, config: Facts) -> Finding:
    count = info.get("connected_slaves", 0)
    if int(config.get("min-replicas-to-write", 0) or 0) > 0:
        return ok("redis.replicas", f"{name} has {count} replicas and writes only while one follows")
    return warn(
        "redis.replicas",
        f"{name} has {count} replicas, and min-replicas-to-write is 0",
        why="a primary that is cut off goes on accepting jobs that a failover then forgets",
        fix="CONFIG SET min-replicas-to-write 1; the journal's reconcile finds what a failover lost",
    )
