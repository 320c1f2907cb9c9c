"""All commands on one screen: name, the function behind it as `module:function`, examples.

Nothing is imported here: `program.py` imports the module of the one command that is asked for. Without examples here,
the module has them as `EXAMPLES`.
"""

from dataclasses import dataclass


class Command:
    """A command, with examples for its help."""

    def __init__(self, name: str, function: str, *examples: str) -> None:
        self.name, self.function, self.examples = name, function, examples


@dataclass(frozen=True)
class Noun:
    """A command with commands of its own."""

    name: str
    summary: str
    commands: tuple[Command, ...]
    hidden: bool = False


SERVER = (
    Command("serve", "serve:serve"),
    Command("config", "config:config", "duetime config", "duetime config --config /etc/duetime.toml --json"),
    Command("version", "version:version", "duetime version"),
)

JOBS = (
    Command(
        "push",
        "push:push",
        "duetime push mail 'hello'",
        "duetime push mail 'hello' --delay 10m --id welcome-42 --tries 3",
        "duetime push mail 'happy new year' --at 2027-01-01T00:00:00Z",
        "tar c folder | duetime push backup -",
        "duetime push mail --file jobs.jsonl --priority low",
    ),
    Command("later", "push:later", "duetime later 10m mail 'hello'", "duetime later 2027-01-01T00:00:00Z mail 'hello'"),
    Command(
        "reserve",
        "consume:reserve",
        "duetime reserve mail",
        "duetime reserve urgent mail --wait 1m --ttr 5m --limit 10",
        "lease=$(duetime reserve mail --json | jq -r .lease)",
    ),
    Command(
        "ack",
        "consume:ack",
        'duetime ack "$lease"',
        "duetime reserve mail --limit 100 --json | jq -r .lease | duetime ack -",
    ),
    Command(
        "release",
        "consume:release",
        'duetime release "$lease" --delay 30s --error "mail server busy"',
        'duetime release "$lease" --kill --error "no such address"',
    ),
    Command("extend", "consume:extend", 'duetime extend "$lease" --ttr 5m'),
    Command("kill", "consume:kill", 'duetime kill "$lease" --error "no such address"'),
    Command("cancel", "jobs:cancel", "duetime cancel mail welcome-42"),
    Command(
        "reschedule",
        "jobs:reschedule",
        "duetime reschedule mail welcome-42 --delay 1h",
        "duetime reschedule mail welcome-42 --at 2027-01-01T00:00:00Z",
    ),
    Command("get", "jobs:get", "duetime get mail welcome-42", "duetime get backup nightly --body > backup.tar"),
    Command(
        "list",
        "jobs:list_jobs",
        "duetime list mail",
        "duetime list mail --state delayed --limit 0 --json | jq -r .id",
        "duetime list mail --state ready --limit 0 --json | duetime push other --file -",
    ),
    Command("peek", "jobs:peek", "duetime peek mail"),
)

WATCH = (
    Command(
        "history",
        "history:history",
        "duetime history welcome-42",
        "duetime history welcome-42 --queue mail --journal /var/lib/duetime/journal",
    ),
    Command("top", "top:top", "duetime top", "duetime top mail --interval 5s", "duetime top --once --json"),
    Command(
        "monitor",
        "monitor:monitor",
        "duetime monitor mail --max 1000",
        "duetime monitor --max-dead 1 --max-late 5m --json",
    ),
    Command("demo", "demo:demo", "duetime demo"),
    Command(
        "doctor",
        "doctor:doctor",
        "duetime doctor",
        "duetime doctor --deep --url sqlite:///var/lib/duetime/jobs.db",
        "duetime doctor --json",
    ),
    Command(
        "migrate",
        "migrate:migrate",
        "duetime migrate --url postgresql://db/app",
        "duetime migrate --sql --url postgresql://db/app | psql --single-transaction app",
    ),
    Command(
        "move",
        "move:move",
        "duetime move --from sqlite:///var/lib/duetime/jobs.db --to redis://localhost --dry-run",
        "duetime move --from sqlite:///var/lib/duetime/jobs.db --to redis://localhost",
        "duetime move --from redis://localhost --to postgresql://db/app --follow --json",
    ),
    Command("backup", "backup:backup", "duetime backup jobs.backup --url redis://localhost"),
    Command(
        "restore",
        "backup:restore",
        "duetime restore jobs.backup --check",
        "duetime restore jobs.backup --url postgresql://db/app",
    ),
)

QUEUE = (
    Command("list", "queues:list_queues", "duetime queue list"),
    Command("counts", "queues:counts", "duetime queue counts mail", "duetime queue counts --json"),
    Command("totals", "queues:totals", "duetime queue totals mail", "duetime queue totals mail --json"),
    Command(
        "rules",
        "queues:rules",
        "duetime queue rules mail",
        "duetime queue rules mail --strict --max-jobs 100000 --max-body 64KiB",
    ),
    Command("pause", "queues:pause", "duetime queue pause mail", "duetime queue pause --all"),
    Command("resume", "queues:resume", "duetime queue resume mail"),
    Command(
        "purge", "queues:purge", "duetime queue purge mail", "duetime queue purge mail --state ready --state delayed -y"
    ),
)

DEAD = (
    Command("list", "dead:list_dead", "duetime dead list", "duetime dead list mail --limit 0"),
    Command("show", "dead:show", "duetime dead show mail welcome-42"),
    Command(
        "respawn", "dead:respawn", "duetime dead respawn mail welcome-42", "duetime dead respawn mail --all --tries 3"
    ),
    Command("delete", "dead:delete", "duetime dead delete mail welcome-42", "duetime dead delete mail --all --yes"),
    Command("prune", "dead:prune", "duetime dead prune mail --older-than 30d"),
)

FAILED = (
    Command("list", "dead:list_dead", "duetime failed list mail"),
    Command("retry", "dead:respawn", "duetime failed retry mail welcome-42", "duetime failed retry mail --all"),
    Command("forget", "dead:delete", "duetime failed forget mail welcome-42"),
    Command("flush", "dead:flush", "duetime failed flush mail --yes"),
    Command("prune", "dead:prune", "duetime failed prune mail --older-than 24h"),
)
"""Laravel's names of the commands for dead letters, for people who know them; not shown in the help."""

BATCH = (
    Command("list", "batches:list_batches", "duetime batch list", "duetime batch list --json"),
    Command("show", "batches:show", "duetime batch show mail.batch-01jcq2y6w3v5z8t4b7n9m1k0xa"),
    Command("pause", "batches:pause", "duetime batch pause mail.batch-01jcq2y6w3v5z8t4b7n9m1k0xa"),
    Command("resume", "batches:resume", "duetime batch resume mail.batch-01jcq2y6w3v5z8t4b7n9m1k0xa"),
    Command("cancel", "batches:cancel", "duetime batch cancel mail.batch-01jcq2y6w3v5z8t4b7n9m1k0xa --yes"),
    Command(
        "shift",
        "batches:shift",
        "duetime batch shift mail.batch-01jcq2y6w3v5z8t4b7n9m1k0xa 1h",
        "duetime batch shift mail.batch-01jcq2y6w3v5z8t4b7n9m1k0xa --earlier 10m",
    ),
)

RECURRING = (Command("list", "recurring:list_schedules", "duetime recurring list", "duetime recurring list --json"),)

TOPIC = (
    Command(
        "add",
        "topic:add",
        "duetime topic add mail https://shop.example.com/mail --delay 10m",
        "duetime topic add pay https://shop.example.com/pay --method POST --retry-if '{res.code} != 200' --set "
        "success=2xx --set secret=new",
    ),
    Command("list", "topic:list_topics", "duetime topic list"),
    Command("counters", "topic:counters", "duetime topic counters", "duetime topic counters --json"),
    Command("show", "topic:show", "duetime topic show mail"),
    Command("edit", "topic:edit", "duetime topic edit mail --delay 5m --set cap=3"),
    Command("offline", "topic:offline", "duetime topic offline mail"),
    Command("online", "topic:online", "duetime topic online mail"),
    Command("remove", "topic:remove", "duetime topic remove mail --yes"),
    Command("test", "topic:sample", "duetime topic test mail", 'duetime topic test mail --body \'{"to": "ann"}\''),
)

TOKEN = (
    Command(
        "create",
        "tokens:create",
        "duetime token create --namespace shop --description 'the web shop'",
        "duetime token create --scope write --url redis://localhost",
    ),
    Command(
        "list", "tokens:list_tokens", "duetime token list", "duetime token list --url http://user:password@host:7778"
    ),
    Command("revoke", "tokens:revoke", "duetime token revoke 5f2a09c1"),
)

LIMIT = (
    Command("list", "limits:list_limits", "duetime limit list"),
    Command("set", "limits:set_limit", "duetime limit set 5f2a09c1 --write 1000 --read 5000 --every 1m"),
    Command("remove", "limits:remove", "duetime limit remove 5f2a09c1"),
)

JOURNAL = (
    Command("list", "journal:list_nodes", "duetime journal list", "duetime journal list --json"),
    Command("end", "journal:end", "duetime journal end --url sqlite:///var/lib/duetime/jobs.db"),
)

USER = (Command("hash", "users:hash_", "duetime user hash"),)

ALERT = (
    Command(
        "add",
        "alert:add",
        "duetime alert add ops@example.com --url redis://localhost",
        "duetime alert add ntfy://ops-alerts --url redis://localhost",
        "duetime alert add ntfy://payments-alerts --channel payments --url redis://localhost",
    ),
    Command("remove", "alert:remove", "duetime alert remove ops@example.com --url redis://localhost"),
    Command(
        "mail-server",
        "alert:mail_server",
        "duetime alert mail-server --host smtp.example.com --from duetime@example.com --url redis://localhost",
    ),
    Command("list", "alert:list_alerts", "duetime alert list --url redis://localhost"),
    Command("test", "alert:test", "duetime alert test --url redis://localhost"),
)

WORK = (
    Command(
        "work",
        "work:work",
        "duetime work shop.tasks:app",
        "duetime work shop.tasks --queue urgent,mail --concurrency 8 --memory 500",
        "duetime work shop.tasks --stop-when-empty --json",
    ),
)

WORKERS = (Command("workers", "workers:workers", "duetime workers", "duetime workers --json"),)

WORKER = (
    Command("restart", "work:restart", "duetime worker restart"),
    Command("pause-task", "work:pause_task", "duetime worker pause-task shop.send"),
    Command("resume-task", "work:resume_task", "duetime worker resume-task shop.send"),
    Command("progress", "work:progress", "duetime worker progress mail 01JCQ2Y6W3V5Z8T4B7N9M1K0XA"),
)

PIPELINE = (
    Command("schedule", "pipelines.schedule:schedule"),
    Command("run", "pipelines.run:run"),
    Command("ingest", "pipelines.ingest:ingest"),
    Command("lifecycle", "pipelines.lifecycle:lifecycle"),
    Command("audit", "pipelines.audit:audit"),
    Command("reconcile", "pipelines.reconcile:reconcile"),
    Command("stats", "pipelines.stats:stats"),
    Command("report", "pipelines.report:report"),
    Command("forecast", "pipelines.forecast:forecast"),
    Command("replay", "pipelines.replay:replay"),
    Command("vacuum", "pipelines.vacuum:vacuum"),
    Command("demo", "pipelines.demo:demo"),
    Command("package", "pipelines.package:package"),
)

PANELS: dict[str, tuple[Command | Noun, ...]] = {
    "Commands": SERVER,
    "Jobs": JOBS,
    "Looking around": WATCH,
    "Tasks": (*WORK, *WORKERS, Noun("worker", "Workers: restart them, pause tasks, see how far jobs are.", WORKER)),
    "Queues": (
        Noun("queue", "Queues as a whole: list, count, rules, pause, purge.", QUEUE),
        Noun("dead", "Dead letters: look at them, bring them back, remove them.", DEAD),
        Noun("batch", "Batches: how far they are, pause, cancel, shift in time.", BATCH),
        Noun("recurring", "Recurring tasks: what runs when.", RECURRING),
        Noun("topic", "Topics: queues whose jobs are delivered to a callback URL.", TOPIC),
        Noun("token", "Tokens: who may use a namespace.", TOKEN),
        Noun("user", "Users: passwords for accounts of duetime.toml.", USER),
        Noun("limit", "Limits: how many requests a token may make.", LIMIT),
        Noun("journal", "The journal: who writes it, and its end.", JOURNAL),
        Noun("alert", "Alerts: who hears when something is wrong.", ALERT),
        Noun("failed", "Laravel's names for `duetime dead`.", FAILED, hidden=True),
    ),
    "Data": (Noun("pipeline", "Pipelines on Spark: schedule tables, audit, repair, report.", PIPELINE),),
}
"""What `duetime --help` shows, under these headings and in this order."""
