"""The table of all commands: name, function as `module:function`, and the first sentence of the help.

Nothing is imported here, so listing and completing commands is fast. `program.py` imports the module of the command
that runs. A test fails while a sentence here differs from the function's docstring, which also has the examples.
"""

from typing import NamedTuple


class Command(NamedTuple):
    name: str
    function: str
    summary: str


class Noun(NamedTuple):
    """A command with commands of its own."""

    name: str
    summary: str
    commands: tuple[Command, ...]


SERVER = (
    Command("serve", "serve:serve", "Run a server: the API on port 7777, the admin API on port 7778."),
    Command(
        "console", "console:console", "Open the web console of an existing store on this machine, without a server."
    ),
    Command("init", "init:init", "Write the skeleton of a project: a task, settings, and a README of three commands."),
    Command("config", "config:config", "Print the effective settings and their sources; passwords are masked."),
    Command("version", "config:version", "Print the version."),
)

JOBS = (
    Command("push", "push:push", "Add a job, or a file of jobs."),
    Command("later", "push:later", "Add a job that is due later."),
    Command("reserve", "consume:reserve", "Lease jobs that are due, to `ack` or `release` them."),
    Command("ack", "consume:ack", "Finish jobs."),
    Command("release", "consume:release", "Give a job back, to be tried again."),
    Command("extend", "consume:extend", "Renew the leases of running jobs."),
    Command("kill", "consume:kill", "Fail jobs for good, without another try."),
    Command("delete", "jobs:delete", "Delete jobs in any state."),
    Command("reschedule", "jobs:reschedule", "Change the due time of waiting jobs."),
    Command("get", "jobs:get", "Show a job in any state."),
    Command("list", "jobs:list_jobs", "List the jobs of a queue by state: running, ready, delayed, failed."),
    Command("peek", "jobs:peek", "Show the next job without leasing it: the first ready job, else the next due one."),
)

OPERATIONS = (
    Command("history", "journal:history", "Show what happened to a job, also after it is gone."),
    Command("top", "top:top", "Watch the queues of the namespace: counts, rates, lateness. Press q to leave."),
    Command("monitor", "top:monitor", "Compare queues with thresholds; the exit code is 1 if one is exceeded."),
    Command("mcp", "mcp:mcp", "Let agents read queues, and change them if allowed, by the Model Context Protocol."),
    Command("demo", "demo:demo", "Watch a delayed job, a retry and a failed job in twenty seconds."),
    Command("doctor", "doctor:doctor", "Check that settings and stores are safe, and print how to fix what is not."),
    Command("migrate", "transfer:migrate", "Create or upgrade the tables of PostgreSQL, MariaDB, MySQL or SQLite."),
    Command("move", "transfer:move", "Move all jobs, rules, tokens, topics and users to another store."),
    Command("backup", "transfer:backup", "Write all jobs, rules, tokens, topics and users of a store to one file."),
    Command("restore", "transfer:restore", "Load a backup into an empty store of any kind."),
)

QUEUE = (
    Command("list", "queues:list_queues", "List the queues of the namespace, with exact counts and rules."),
    Command("counts", "queues:counts", "Count jobs by state, exactly."),
    Command("totals", "queues:totals", "Count the events of a queue: in total and for each of the last 31 days (UTC)."),
    Command("rules", "queues:rules", "Show or change a queue's rules: order, caps, what happens to expired jobs."),
    Command("pause", "queues:pause", "Stop deliveries; pushes, acks and expiry continue."),
    Command("resume", "queues:resume", "Deliver again; waiting consumers wake immediately."),
    Command("purge", "queues:purge", "Delete the jobs of a queue, by state or all of them."),
)

FAILED = (
    Command("list", "failed:list_failed", "List failed jobs with the last line of their error, oldest failure first."),
    Command("show", "failed:show", "Show a failed job with its last error."),
    Command("retry", "failed:retry", "Retry failed jobs: they are ready immediately, with all their tries."),
    Command("delete", "failed:delete", "Delete failed jobs: some by id, or --all."),
    Command("prune", "failed:prune", "Delete jobs that failed a long time ago."),
)

BATCH = (
    Command("list", "batches:list_batches", "List the batches of the namespace that are open or have failed jobs."),
    Command("show", "batches:show", "Show the progress of a batch, or its result until seven days after its end."),
    Command("pause", "batches:pause", "Start no more jobs of a batch until it is resumed; running jobs finish."),
    Command("resume", "batches:resume", "Let the jobs of a batch start again."),
    Command("cancel", "batches:cancel", "Delete the waiting jobs of a batch and close it; running jobs finish."),
    Command("shift", "batches:shift", "Shift the due time of every waiting job of a batch."),
)

SCHEDULE = (
    Command("list", "schedule:list_schedules", "List the schedules of the namespace with their next and last runs."),
    Command("show", "schedule:show", "Show a schedule and the state of its last run."),
    Command("add", "schedule:add", "Add a schedule, or replace the one of this name."),
    Command("pause", "schedule:pause", "Start no runs of a schedule until it is resumed."),
    Command("resume", "schedule:resume", "Continue a paused schedule with its next run."),
    Command("run", "schedule:run", "Run a schedule now, in addition to its regular runs."),
    Command("backfill", "schedule:backfill", "Push the runs of a schedule in a period of the past."),
    Command("remove", "schedule:remove", "Remove a schedule; jobs that it has pushed stay."),
)

TOPIC = (
    Command("add", "topic:add", "Add a topic: its jobs are delivered to the URL when they are due."),
    Command("list", "topic:list_topics", "List the topics of the namespace, with their counts."),
    Command("counters", "topic:counters", "Show php-delayqueue's counters under their own names."),
    Command("show", "topic:show", "Show all fields and counts of a topic."),
    Command("edit", "topic:edit", "Change a topic; every server process follows within a second."),
    Command("offline", "topic:offline", "Refuse new jobs; jobs that were accepted are still delivered."),
    Command("online", "topic:online", "Accept jobs, and deliver again after a halt."),
    Command("remove", "topic:remove", "Remove a topic; its jobs fail when they are due."),
    Command("test", "topic:sample", "Send one sample call and show the request and the answer."),
)

TOKEN = (
    Command("create", "tokens:create", "Create a token for the namespace. It is shown only once; its hash is kept."),
    Command("list", "tokens:list_tokens", "List the namespace's tokens by their labels."),
    Command("revoke", "tokens:revoke", "Refuse a token from now on; other servers follow within a second."),
)

LIMIT = (
    Command("list", "tokens:list_limits", "List the limits of the namespace's tokens."),
    Command("set", "tokens:set_limit", "Limit a token's requests; those beyond the limit get 429 with Retry-After."),
    Command("remove", "tokens:remove_limit", "Remove a token's limit."),
)

JOURNAL = (
    Command("list", "journal:list_nodes", "List the nodes of the journal: how much each wrote, if it still writes."),
    Command("end", "journal:end", "End the journal of a pool: its store may be used without one again."),
)

USER = (Command("hash", "tokens:hash_", "Print the hash of a password, for the table accounts in duetime.toml."),)

ALERT = (
    Command("add", "alert:add", "Send every alert to this address, or give it a name that topics can use."),
    Command("remove", "alert:remove", "Stop sending alerts to this address, or to the channel of this name."),
    Command("mail-server", "alert:mail_server", "Set the mail server that sends to plain mail addresses."),
    Command("list", "alert:list_alerts", "Show the recipients of alerts, and the open problems."),
    Command("test", "alert:test", "Send a test alert to every address and show which were reached."),
)

POOL = (
    Command("add", "pool:add", "Add a pool; every server process opens it within a second."),
    Command("list", "pool:list_pools", "List the pools that were added."),
    Command("remove", "pool:remove", "Close a pool that was added; its jobs stay in its store."),
    Command("show", "pool:show", "Show each store of a pool: what it holds, how full it is, what is wrong."),
)

BRIDGE = (
    Command("list", "bridge:list_queues", "List the queues of another system, with their sizes and lateness."),
    Command("watch", "bridge:watch", "Show the queues of another system again and again."),
    Command("relay", "bridge:relay", "Move jobs continuously from another system to Duetime, or back."),
    Command("drain", "bridge:drain", "Move all jobs of another system's queue to Duetime, then end."),
    Command("import", "bridge:import_all", "Move all queues of another system to Duetime, then end."),
)

WORKER = (
    Command("restart", "workers:restart", "Make every worker of the namespace finish its jobs and exit."),
    Command("pause-task", "workers:pause_task", "Start no more jobs of a task in any worker of the namespace."),
    Command("resume-task", "workers:resume_task", "Start jobs of a task again, within five seconds."),
    Command("progress", "workers:progress", "Show how far a job is, as reported by `current_job().progress(...)`."),
    Command("output", "workers:output", "Show the last lines that a running job logged with `current_job().log(...)`."),
)

TASKS = (
    Command("work", "work:work", "Run the jobs of an App's tasks."),
    Command("workers", "workers:workers", "List the workers of the namespace and the jobs that they run longest."),
    Noun("worker", "Workers: restart them, pause tasks, show the progress and output of jobs.", WORKER),
)

PIPELINE = (
    Command("schedule", "pipelines.schedule:schedule", "Make jobs out of the rows of a table, exactly once."),
    Command("cancel", "pipelines.schedule:cancel", "Cancel the jobs that the rows of a table name."),
    Command("run", "pipelines.run:run", "Run ingest, lifecycle, stats, audit and report, once or repeatedly."),
    Command("ingest", "pipelines.lake:ingest", "Load sealed segments of the journal into the table `events`."),
    Command("lifecycle", "pipelines.lake:lifecycle", "Update the table `jobs` from the table `events`."),
    Command("audit", "pipelines.audit:audit", "Compare the journal with the store: find jobs that were lost."),
    Command("reconcile", "pipelines.reconcile:reconcile", "Push lost jobs again, with the same id and born."),
    Command("stats", "pipelines.lake:stats", "Update the table `stats`, and show the counters of each topic."),
    Command("report", "pipelines.report:report", "Write one HTML file on lateness, throughput, retries and losses."),
    Command("forecast", "pipelines.forecast:forecast", "Forecast the lateness of the namespace's queues, and draw it."),
    Command("replay", "pipelines.replay:replay", "Repeat a past window's arrivals as a capacity test."),
    Command("vacuum", "pipelines.lake:vacuum", "Remove old days, old bodies and unused files of the lake."),
    Command("demo", "pipelines.demo:demo", "Schedule a million rows, lose the store, prove and repair the loss."),
    Command("package", "pipelines.package:package", "Write Duetime as an archive for `spark-submit --py-files`."),
)

PANELS: dict[str, tuple[Command | Noun, ...]] = {
    "Commands": SERVER,
    "Jobs": JOBS,
    "Operations": OPERATIONS,
    "Tasks": TASKS,
    "Queues": (
        Noun("queue", "Queues as a whole: list, count, rules, pause, purge.", QUEUE),
        Noun("failed", "Failed jobs (dead letters): list, retry, delete.", FAILED),
        Noun("batch", "Batches: progress, pause, cancel, shift in time.", BATCH),
        Noun("schedule", "Schedules: jobs that are pushed at an interval or by a cron expression.", SCHEDULE),
        Noun("topic", "Topics: queues whose jobs are delivered to a callback URL.", TOPIC),
        Noun("token", "Tokens: who may use a namespace.", TOKEN),
        Noun("user", "Users: passwords for accounts of duetime.toml.", USER),
        Noun("limit", "Limits: how many requests a token may make.", LIMIT),
        Noun("journal", "The journal: its nodes, and its end.", JOURNAL),
        Noun("pool", "Pools: add them to those of the settings, show their stores.", POOL),
        Noun("alert", "Alerts: who is notified when something is wrong.", ALERT),
    ),
    "Other systems": (
        Noun("bridge", "Bridges to Laravel, Redisson, lmstfy and php-delayqueue: list, relay, drain, import.", BRIDGE),
    ),
    "Data": (Noun("pipeline", "Pipelines on Spark: schedule tables, audit, repair, report.", PIPELINE),),
}
"""What `duetime --help` shows, under these headings and in this order."""
