"""The table of all commands: the function of each, as `module:function`.

Nothing is imported here, so listing and completing commands is fast. `program.py` imports the module of the command
that runs, and reads the first sentence of the help from the source of the others.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Noun(NamedTuple):
    """A command with commands of its own."""

    summary: str
    commands: Mapping[str, str]


# fmt: off
PANELS: Mapping[str, Mapping[str, str | Noun]] = {
    "Commands": {
        "serve": "serve:serve", "console": "console:console", "init": "init:init", "config": "config:config",
        "version": "config:version",
    },
    "Jobs": {
        "push": "push:push", "later": "push:later", "reserve": "consume:reserve", "ack": "consume:ack",
        "release": "consume:release", "extend": "consume:extend", "kill": "consume:kill", "delete": "jobs:delete",
        "reschedule": "jobs:reschedule", "get": "jobs:get", "list": "jobs:list_jobs", "peek": "jobs:peek",
    },
    "Operations": {
        "history": "journal:history", "top": "top:top", "monitor": "top:monitor", "mcp": "mcp:mcp",
        "demo": "demo:demo", "doctor": "doctor:doctor", "migrate": "transfer:migrate", "move": "transfer:move",
        "backup": "transfer:backup", "restore": "transfer:restore",
    },
    "Tasks": {
        "work": "work:work", "workers": "workers:workers",
        "worker": Noun("Workers: restart them, pause tasks, show the progress and output of jobs.", {
            "restart": "workers:restart", "pause-task": "workers:pause_task", "resume-task": "workers:resume_task",
            "progress": "workers:progress", "output": "workers:output",
        }),
    },
    "Queues": {
        "queue": Noun("Queues as a whole: list, count, rules, pause, purge.", {
            "list": "queues:list_queues", "counts": "queues:counts", "totals": "queues:totals",
            "rules": "queues:rules", "pause": "queues:pause", "resume": "queues:resume", "purge": "queues:purge",
        }),
        "failed": Noun("Failed jobs (dead letters): list, retry, delete.", {
            "list": "failed:list_failed", "show": "failed:show", "retry": "failed:retry", "delete": "failed:delete",
            "prune": "failed:prune",
        }),
        "batch": Noun("Batches: progress, pause, cancel, shift in time.", {
            "list": "batches:list_batches", "show": "batches:show", "pause": "batches:pause",
            "resume": "batches:resume", "cancel": "batches:cancel", "shift": "batches:shift",
        }),
        "schedule": Noun("Schedules: jobs that are pushed at an interval or by a cron expression.", {
            "list": "schedule:list_schedules", "show": "schedule:show", "add": "schedule:add",
            "pause": "schedule:pause", "resume": "schedule:resume", "run": "schedule:run",
            "backfill": "schedule:backfill", "remove": "schedule:remove",
        }),
        "topic": Noun("Topics: queues whose jobs are delivered to a callback URL.", {
            "add": "topic:add", "list": "topic:list_topics", "counters": "topic:counters", "show": "topic:show",
            "edit": "topic:edit", "offline": "topic:offline", "online": "topic:online", "remove": "topic:remove",
            "test": "topic:sample",
        }),
        "token": Noun("Tokens: who may use a namespace.", {
            "create": "tokens:create", "list": "tokens:list_tokens", "revoke": "tokens:revoke",
        }),
        "user": Noun("Users: passwords for accounts of duetime.toml.", {
            "hash": "tokens:hash_",
        }),
        "limit": Noun("Limits: how many requests a token may make.", {
            "list": "tokens:list_limits", "set": "tokens:set_limit", "remove": "tokens:remove_limit",
        }),
        "journal": Noun("The journal: its nodes, and its end.", {
            "list": "journal:list_nodes", "end": "journal:end",
        }),
        "pool": Noun("Pools: add them to those of the settings, show their stores.", {
            "add": "pool:add", "list": "pool:list_pools", "remove": "pool:remove", "show": "pool:show",
        }),
        "alert": Noun("Alerts: who is notified when something is wrong.", {
            "add": "alert:add", "remove": "alert:remove", "mail-server": "alert:mail_server",
            "list": "alert:list_alerts", "test": "alert:test",
        }),
    },
    "Other systems": {
        "bridge": Noun("Bridges to Laravel, Redisson, lmstfy and php-delayqueue: list, relay, drain, import.", {
            "list": "bridge:list_queues", "watch": "bridge:watch", "relay": "bridge:relay", "drain": "bridge:drain",
            "import": "bridge:import_all",
        }),
    },
    "Data": {
        "pipeline": Noun("Pipelines on Spark: schedule tables, audit, repair, report.", {
            "schedule": "pipelines.schedule:schedule", "cancel": "pipelines.schedule:cancel",
            "run": "pipelines.run:run", "ingest": "pipelines.lake:ingest", "lifecycle": "pipelines.lake:lifecycle",
            "audit": "pipelines.audit:audit", "reconcile": "pipelines.reconcile:reconcile",
            "stats": "pipelines.lake:stats", "report": "pipelines.report:report",
            "forecast": "pipelines.forecast:forecast", "replay": "pipelines.replay:replay",
            "vacuum": "pipelines.lake:vacuum", "demo": "pipelines.demo:demo", "package": "pipelines.package:package",
        }),
    },
}
# fmt: on
"""What `duetime --help` shows, under these headings and in this order."""
