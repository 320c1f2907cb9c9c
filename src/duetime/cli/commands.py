"""The table of all commands: name, function as `module:function`, first sentence of the help, examples.

Nothing is imported here, so the help and the completion of a group need no command. `program.py` imports the module of
the command that runs. A test fails while a sentence here differs from the function's docstring. Without examples here,
the module has them as `EXAMPLES`.
"""

from dataclasses import dataclass


class Command:
    """A command, with examples for its help."""

    def __init__(self, name: str, function: str, summary: str, *examples: str) -> None:
        self.name, self.function, self.summary, self.examples = name, function, summary, examples


@dataclass(frozen=True)
class Noun:
    """A command with commands of its own."""

    name: str
    summary: str
    commands: tuple[Command, ...]
    hidden: bool = False


SERVER = (
    Command("serve", "serve:serve", "Run a server: the API on port 7777, the admin API on port 7778."),
    Command(
        "config",
        "config:config",
        "Print the effective settings and where each came from; passwords are masked.",
        "duetime config",
        "duetime config --config /etc/duetime.toml --json",
    ),
    Command("version", "version:version", "Print the version.", "duetime version"),
)

JOBS = (
    Command(
        "push",
        "push:push",
        "Add a job, or a file of jobs.",
        "duetime push mail 'hello'",
        "duetime push mail 'hello' --delay 10m --id welcome-42 --tries 3",
        "duetime push mail 'happy new year' --at 2027-01-01T00:00:00Z",
        "tar c folder | duetime push backup -",
        "duetime push mail --file jobs.jsonl --priority low",
    ),
    Command(
        "later",
        "push:later",
        "Add a job that is due later.",
        "duetime later 10m mail 'hello'",
        "duetime later 2027-01-01T00:00:00Z mail 'hello'",
    ),
    Command(
        "reserve",
        "consume:reserve",
        "Lease jobs that are due, to `ack` or `release` them.",
        "duetime reserve mail",
        "duetime reserve urgent mail --wait 1m --ttr 5m --limit 10",
        "lease=$(duetime reserve mail --json | jq -r .lease)",
    ),
    Command(
        "ack",
        "consume:ack",
        "Finish jobs: they are gone.",
        'duetime ack "$lease"',
        "duetime reserve mail --limit 100 --json | jq -r .lease | duetime ack -",
    ),
    Command(
        "release",
        "consume:release",
        "Give a job back, to be tried again.",
        'duetime release "$lease" --delay 30s --error "mail server busy"',
        'duetime release "$lease" --kill --error "no such address"',
    ),
    Command(
        "extend", "consume:extend", "Hold jobs for longer: renew their leases.", 'duetime extend "$lease" --ttr 5m'
    ),
    Command(
        "kill",
        "consume:kill",
        "Send jobs to the dead letters, without another try.",
        'duetime kill "$lease" --error "no such address"',
    ),
    Command("cancel", "jobs:cancel", "Remove jobs, wherever they are.", "duetime cancel mail welcome-42"),
    Command(
        "reschedule",
        "jobs:reschedule",
        "Change when waiting jobs are due.",
        "duetime reschedule mail welcome-42 --delay 1h",
        "duetime reschedule mail welcome-42 --at 2027-01-01T00:00:00Z",
    ),
    Command(
        "get",
        "jobs:get",
        "Show a job in any state.",
        "duetime get mail welcome-42",
        "duetime get backup nightly --body > backup.tar",
    ),
    Command(
        "list",
        "jobs:list_jobs",
        "List the jobs of a queue: leased, ready, delayed and dead ones.",
        "duetime list mail",
        "duetime list mail --state delayed --limit 0 --json | jq -r .id",
        "duetime list mail --state ready --limit 0 --json | duetime push other --file -",
    ),
    Command(
        "peek",
        "jobs:peek",
        "Show the next job without leasing it: the first ready one, else the next one due.",
        "duetime peek mail",
    ),
)

WATCH = (
    Command(
        "history",
        "history:history",
        "Show what happened to a job, also after it is gone.",
        "duetime history welcome-42",
        "duetime history welcome-42 --queue mail --journal /var/lib/duetime/journal",
    ),
    Command(
        "top",
        "top:top",
        "Watch the queues of the namespace: counts, rates, lateness. q or Ctrl-C leaves.",
        "duetime top",
        "duetime top mail --interval 5s",
        "duetime top --once --json",
    ),
    Command(
        "monitor",
        "monitor:monitor",
        "Show queues and what is over its threshold; exit code 1 if anything is.",
        "duetime monitor mail --max 1000",
        "duetime monitor --max-dead 1 --max-late 5m --json",
    ),
    Command(
        "demo",
        "demo:demo",
        "See a delayed job, a retry, a dead letter and a respawn in twenty seconds.",
        "duetime demo",
    ),
    Command(
        "doctor",
        "doctor:doctor",
        "Check that everything is safe, and say what to do about what is not.",
        "duetime doctor",
        "duetime doctor --deep --url sqlite:///var/lib/duetime/jobs.db",
        "duetime doctor --json",
    ),
    Command(
        "migrate",
        "migrate:migrate",
        "Make or upgrade the tables of a store: PostgreSQL, MariaDB, MySQL or SQLite.",
        "duetime migrate --url postgresql://db/app",
        "duetime migrate --sql --url postgresql://db/app | psql --single-transaction app",
    ),
    Command(
        "move",
        "move:move",
        "Move everything from one store to another: jobs, dead letters, rules, tokens, topics, users.",
        "duetime move --from sqlite:///var/lib/duetime/jobs.db --to redis://localhost --dry-run",
        "duetime move --from sqlite:///var/lib/duetime/jobs.db --to redis://localhost",
        "duetime move --from redis://localhost --to postgresql://db/app --follow --json",
    ),
    Command(
        "backup",
        "backup:backup",
        "Write everything in a store to one file: jobs, dead letters, rules, tokens, topics, users.",
        "duetime backup jobs.backup --url redis://localhost",
    ),
    Command(
        "restore",
        "backup:restore",
        "Put a backup into an empty store, of any kind. "
        "Checks the whole file first, and refuses a store that has jobs.",
        "duetime restore jobs.backup --check",
        "duetime restore jobs.backup --url postgresql://db/app",
    ),
)

QUEUE = (
    Command(
        "list",
        "queues:list_queues",
        "List the queues of the namespace, with exact counts and rules.",
        "duetime queue list",
    ),
    Command(
        "counts",
        "queues:counts",
        "Count jobs by state, exactly.",
        "duetime queue counts mail",
        "duetime queue counts --json",
    ),
    Command(
        "totals",
        "queues:totals",
        "Show how often each event happened to the queue's jobs, exactly: "
        "in all, and on each of the last 31 days (UTC).",
        "duetime queue totals mail",
        "duetime queue totals mail --json",
    ),
    Command(
        "rules",
        "queues:rules",
        "Show or change what a queue obeys: order, caps, what becomes of expired jobs.",
        "duetime queue rules mail",
        "duetime queue rules mail --strict --max-jobs 100000 --max-body 64KiB",
    ),
    Command(
        "pause",
        "queues:pause",
        "Stop deliveries; pushes, acks and expiry go on.",
        "duetime queue pause mail",
        "duetime queue pause --all",
    ),
    Command(
        "resume", "queues:resume", "Deliver again; waiting consumers wake immediately.", "duetime queue resume mail"
    ),
    Command(
        "purge",
        "queues:purge",
        "Remove jobs for good, by state or all of them.",
        "duetime queue purge mail",
        "duetime queue purge mail --state ready --state delayed -y",
    ),
)

DEAD = (
    Command(
        "list",
        "dead:list_dead",
        "List dead letters with the last line of their error, queue by queue, longest dead first.",
        "duetime dead list",
        "duetime dead list mail --limit 0",
    ),
    Command(
        "show", "dead:show", "Show one dead letter, with the error that ended it.", "duetime dead show mail welcome-42"
    ),
    Command(
        "respawn",
        "dead:respawn",
        "Bring dead jobs back: ready immediately, with all their tries.",
        "duetime dead respawn mail welcome-42",
        "duetime dead respawn mail --all --tries 3",
    ),
    Command(
        "delete",
        "dead:delete",
        "Remove dead letters for good: some by id, or --all.",
        "duetime dead delete mail welcome-42",
        "duetime dead delete mail --all --yes",
    ),
    Command(
        "prune",
        "dead:prune",
        "Remove dead letters that have been dead for a long time.",
        "duetime dead prune mail --older-than 30d",
    ),
)

FAILED = (
    Command(
        "list",
        "dead:list_dead",
        "List dead letters with the last line of their error, queue by queue, longest dead first.",
        "duetime failed list mail",
    ),
    Command(
        "retry",
        "dead:respawn",
        "Bring dead jobs back: ready immediately, with all their tries.",
        "duetime failed retry mail welcome-42",
        "duetime failed retry mail --all",
    ),
    Command(
        "forget",
        "dead:delete",
        "Remove dead letters for good: some by id, or --all.",
        "duetime failed forget mail welcome-42",
    ),
    Command("flush", "dead:flush", "Remove all dead letters of a queue for good.", "duetime failed flush mail --yes"),
    Command(
        "prune",
        "dead:prune",
        "Remove dead letters that have been dead for a long time.",
        "duetime failed prune mail --older-than 24h",
    ),
)
"""Laravel's names of the commands for dead letters, for people who know them; not shown in the help."""

BATCH = (
    Command(
        "list",
        "batches:list_batches",
        "List the batches of the namespace that are not over, or have dead letters.",
        "duetime batch list",
        "duetime batch list --json",
    ),
    Command(
        "show",
        "batches:show",
        "Show how far a batch is, or within seven days after its end how it ended.",
        "duetime batch show mail.batch-01jcq2y6w3v5z8t4b7n9m1k0xa",
    ),
    Command(
        "pause",
        "batches:pause",
        "Begin no job of a batch until it is resumed; those that run come to their end.",
        "duetime batch pause mail.batch-01jcq2y6w3v5z8t4b7n9m1k0xa",
    ),
    Command(
        "resume",
        "batches:resume",
        "Let the jobs of a batch begin again.",
        "duetime batch resume mail.batch-01jcq2y6w3v5z8t4b7n9m1k0xa",
    ),
    Command(
        "cancel",
        "batches:cancel",
        "Remove the jobs of a batch that wait, for good, and take no more. Those that run come to their end.",
        "duetime batch cancel mail.batch-01jcq2y6w3v5z8t4b7n9m1k0xa --yes",
    ),
    Command(
        "shift",
        "batches:shift",
        "Have every job of a batch that waits due so much later, or earlier.",
        "duetime batch shift mail.batch-01jcq2y6w3v5z8t4b7n9m1k0xa 1h",
        "duetime batch shift mail.batch-01jcq2y6w3v5z8t4b7n9m1k0xa --earlier 10m",
    ),
)

RECURRING = (
    Command(
        "list",
        "recurring:list_schedules",
        "List the recurring tasks of the namespace with their next runs.",
        "duetime recurring list",
        "duetime recurring list --json",
    ),
)

TOPIC = (
    Command(
        "add",
        "topic:add",
        "Add a topic: its jobs are delivered to the URL when they are due.",
        "duetime topic add mail https://shop.example.com/mail --delay 10m",
        "duetime topic add pay https://shop.example.com/pay --method POST --retry-if '{res.code} != 200' --set "
        "success=2xx --set secret=new",
    ),
    Command("list", "topic:list_topics", "List the topics of the namespace, with their counts.", "duetime topic list"),
    Command(
        "counters",
        "topic:counters",
        "Show php-delayqueue's counters under their own names, for scripts that know them.",
        "duetime topic counters",
        "duetime topic counters --json",
    ),
    Command("show", "topic:show", "Show all about a topic.", "duetime topic show mail"),
    Command(
        "edit",
        "topic:edit",
        "Change a topic; every server process knows it within a second.",
        "duetime topic edit mail --delay 5m --set cap=3",
    ),
    Command(
        "offline",
        "topic:offline",
        "Refuse new jobs; those that are there are still delivered.",
        "duetime topic offline mail",
    ),
    Command("online", "topic:online", "Take jobs, and deliver again after a halt.", "duetime topic online mail"),
    Command(
        "remove",
        "topic:remove",
        "Remove a topic; its jobs go to the dead letters as they fall due.",
        "duetime topic remove mail --yes",
    ),
    Command(
        "test",
        "topic:sample",
        "Send one sample call and show what was sent and what came back.",
        "duetime topic test mail",
        'duetime topic test mail --body \'{"to": "ann"}\'',
    ),
)

TOKEN = (
    Command(
        "create",
        "tokens:create",
        "Make a token for the namespace. It is shown this once; only its hash is kept.",
        "duetime token create --namespace shop --description 'the web shop'",
        "duetime token create --scope write --url redis://localhost",
    ),
    Command(
        "list",
        "tokens:list_tokens",
        "List the namespace's tokens by their labels.",
        "duetime token list",
        "duetime token list --url http://user:password@host:7778",
    ),
    Command(
        "revoke",
        "tokens:revoke",
        "Refuse a token from now on; other servers follow within a second.",
        "duetime token revoke 5f2a09c1",
    ),
)

LIMIT = (
    Command("list", "limits:list_limits", "List the limits of the namespace's tokens.", "duetime limit list"),
    Command(
        "set",
        "limits:set_limit",
        "Limit the requests of a token; requests beyond the limit get 429 with Retry-After.",
        "duetime limit set 5f2a09c1 --write 1000 --read 5000 --every 1m",
    ),
    Command("remove", "limits:remove", "Take a token's limit away.", "duetime limit remove 5f2a09c1"),
)

JOURNAL = (
    Command(
        "list",
        "journal:list_nodes",
        "List the nodes of the journal: who wrote it, how much, and whether it still writes.",
        "duetime journal list",
        "duetime journal list --json",
    ),
    Command(
        "end",
        "journal:end",
        "End the journal of a pool: servers and programs may use its store without one again.",
        "duetime journal end --url sqlite:///var/lib/duetime/jobs.db",
    ),
)

USER = (
    Command(
        "hash",
        "users:hash_",
        "Print the hash of a password, for the table accounts in duetime.toml.",
        "duetime user hash",
    ),
)

ALERT = (
    Command(
        "add",
        "alert:add",
        "Send every alert to this address, or give it a name that topics can use.",
        "duetime alert add ops@example.com --url redis://localhost",
        "duetime alert add ntfy://ops-alerts --url redis://localhost",
        "duetime alert add ntfy://payments-alerts --channel payments --url redis://localhost",
    ),
    Command(
        "remove",
        "alert:remove",
        "Stop sending alerts to this address, or to the channel of this name.",
        "duetime alert remove ops@example.com --url redis://localhost",
    ),
    Command(
        "mail-server",
        "alert:mail_server",
        "Set the mail server that plain mail addresses are reached through.",
        "duetime alert mail-server --host smtp.example.com --from duetime@example.com --url redis://localhost",
    ),
    Command(
        "list",
        "alert:list_alerts",
        "Show who receives alerts, and what is wrong now.",
        "duetime alert list --url redis://localhost",
    ),
    Command(
        "test",
        "alert:test",
        "Send a test alert to every address and say which were reached.",
        "duetime alert test --url redis://localhost",
    ),
)

WORK = (
    Command(
        "work",
        "work:work",
        "Run the jobs of an App's tasks.",
        "duetime work shop.tasks:app",
        "duetime work shop.tasks --queue urgent,mail --concurrency 8 --memory 500",
        "duetime work shop.tasks --stop-when-empty --json",
    ),
)

WORKERS = (
    Command(
        "workers",
        "workers:workers",
        "List the workers of the namespace: since when they run, their queues, and the jobs that they run longest.",
        "duetime workers",
        "duetime workers --json",
    ),
)

WORKER = (
    Command(
        "restart",
        "work:restart",
        "Have every worker of the namespace finish what it runs and exit, within a second or so.",
        "duetime worker restart",
    ),
    Command(
        "pause-task",
        "work:pause_task",
        "Have no worker of the namespace begin jobs of a task, within a second or so.",
        "duetime worker pause-task shop.send",
    ),
    Command(
        "resume-task",
        "work:resume_task",
        "Let workers begin jobs of a task again; those that were put off come within five seconds.",
        "duetime worker resume-task shop.send",
    ),
    Command(
        "progress",
        "work:progress",
        "Show how far a job is, as its task last said with `current_job().progress(...)`.",
        "duetime worker progress mail 01JCQ2Y6W3V5Z8T4B7N9M1K0XA",
    ),
)

PIPELINE = (
    Command("schedule", "pipelines.schedule:schedule", "Make jobs out of the rows of a table, exactly once."),
    Command(
        "run",
        "pipelines.run:run",
        "Do ingest, lifecycle, stats, audit and, if asked for, the report, in one session: once, or every few minutes.",
    ),
    Command(
        "ingest",
        "pipelines.ingest:ingest",
        "Take the sealed segments of the journal into the table `events`, each entry once.",
    ),
    Command(
        "lifecycle",
        "pipelines.lifecycle:lifecycle",
        "Bring the table `jobs` up to the table `events`: when each job was accepted, due, delivered, ended, and how.",
    ),
    Command(
        "audit",
        "pipelines.audit:audit",
        "Hold the journal against the store: everything accepted is waiting, leased, dead, or ended on record.",
    ),
    Command(
        "reconcile",
        "pipelines.reconcile:reconcile",
        "Push again what was accepted, has not ended and is not in the store, under its old id and born.",
    ),
    Command(
        "stats",
        "pipelines.stats:stats",
        "Bring the table `stats` up to date, and show the counters of each topic: written, notified, deleted, failed.",
    ),
    Command(
        "report",
        "pipelines.report:report",
        "Write one self-contained HTML file: conservation law, lateness, throughput, retries, dead letters, batches.",
    ),
    Command(
        "forecast",
        "pipelines.forecast:forecast",
        "Say when which queue of the namespace will be how late, and draw it.",
    ),
    Command(
        "replay",
        "pipelines.replay:replay",
        "Re-drive a past window's arrivals for a capacity test: "
        "against another queue (--to) or simulated (--consumers).",
    ),
    Command(
        "vacuum",
        "pipelines.vacuum:vacuum",
        "Forget old days of the lake's tables, old bodies, the rows of finished batches, and files that nothing names.",
    ),
    Command(
        "demo",
        "pipelines.demo:demo",
        "Schedule a table of a million members, lose the store on the way, "
        "prove what is missing, repair it, report it.",
    ),
    Command(
        "package",
        "pipelines.package:package",
        "Write Duetime's code as an archive for `spark-submit --py-files` and `spark.submit.pyFiles`.",
    ),
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
