"""What every test can use. Each topic has its own module; read its docstring for the fixtures it brings."""

# A module that another one imports comes first.
pytest_plugins = [
    "tests.plugins.bytecode",
    "tests.plugins.durations",
    "tests.plugins.garbage",
    "tests.plugins.lanes",
    "tests.plugins.http_patience",
    "tests.plugins.ports",
    "tests.plugins.mysql_server",
    "tests.plugins.postgres_server",
    "tests.plugins.redis_server",
    "tests.plugins.redis_topologies",
    "tests.plugins.redis_tls",
    "tests.plugins.scale",
    "tests.plugins.served",
    "tests.plugins.side_by_side",
    "tests.plugins.store_counts",
]
