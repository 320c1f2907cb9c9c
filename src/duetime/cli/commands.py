"""All commands that talk to queues, on one screen: name, function, examples.

`register` adds them to the app; the app itself, its errors and exit codes are in `main.py`.
"""

from collections.abc import Callable

import typer
from rich.markup import escape

from duetime.cli import (
    alert,
    consume,
    dead,
    demo,
    doctor,
    history,
    jobs,
    journal,
    migrate,
    monitor,
    push,
    queues,
    recurring,
    tokens,
    top,
    topic,
)


class Command:
    """A command, with examples for its help."""

    def __init__(self, name: str, function: Callable[..., None], *examples: str) -> None:
        self.name, self.function, self.examples = name, function, examples


JOBS = (
    Command(
        "push",
        push.push,
        "duetime push mail 'hello'",
        "duetime push mail 'hello' --delay 10m --id welcome-42 --tries 3",
        "duetime push mail 'happy new year' --at 2027-01-01T00:00:00Z",
        "tar c folder | duetime push backup -",
        "duetime push mail --file jobs.jsonl --priority low",
    ),
    Command("later", push.later, "duetime later 10m mail 'hello'", "duetime later 2027-01-01T00:00:00Z mail 'hello'"),
    Command(
        "reserve",
        consume.reserve,
        "duetime reserve mail",
        "duetime reserve urgent mail --wait 1m --ttr 5m --limit 10",
        "lease=$(duetime reserve mail --json | jq -r .lease)",
    ),
    Command(
        "ack",
        consume.ack,
        'duetime ack "$lease"',
        "duetime reserve mail --limit 100 --json | jq -r .lease | duetime ack -",
    ),
    Command(
        "release",
        consume.release,
        'duetime release "$lease" --delay 30s --error "mail server busy"',
        'duetime release "$lease" --kill --error "no such address"',
    ),
    Command("cancel", jobs.cancel, "duetime cancel mail welcome-42"),
    Command(
        "reschedule",
        jobs.reschedule,
        "duetime reschedule mail welcome-42 --delay 1h",
        "duetime reschedule mail welcome-42 --at 2027-01-01T00:00:00Z",
    ),
    Command("get", jobs.get, "duetime get mail welcome-42", "duetime get backup nightly --body > backup.tar"),
    Command(
        "list", jobs.list_jobs, "duetime list mail", "duetime list mail --state delayed --limit 0 --json | jq -r .id"
    ),
    Command("peek", jobs.peek, "duetime peek mail"),
)

WATCH = (
    Command(
        "history",
        history.history,
        "duetime history welcome-42",
        "duetime history welcome-42 --queue mail --journal /var/lib/duetime/journal",
    ),
    Command("top", top.top, "duetime top", "duetime top mail --interval 5s", "duetime top --once --json"),
    Command(
        "monitor",
        monitor.monitor,
        "duetime monitor mail --max 1000",
        "duetime monitor --max-dead 1 --max-late 5m --json",
    ),
    Command("demo", demo.demo, "duetime demo"),
    Command(
        "doctor",
        doctor.doctor,
        "duetime doctor",
        "duetime doctor --deep --url sqlite:///var/lib/duetime/jobs.db",
        "duetime doctor --json",
    ),
    Command(
        "migrate",
        migrate.migrate,
        "duetime migrate --url postgresql://db/app",
        "duetime migrate --sql --url postgresql://db/app | psql --single-transaction app",
    ),
)

QUEUE = (
    Command("list", queues.list_queues, "duetime queue list"),
    Command("counts", queues.counts, "duetime queue counts mail", "duetime queue counts --json"),
    Command("pause", queues.pause, "duetime queue pause mail", "duetime queue pause --all"),
    Command("resume", queues.resume, "duetime queue resume mail"),
    Command(
        "purge", queues.purge, "duetime queue purge mail", "duetime queue purge mail --state ready --state delayed -y"
    ),
)

DEAD = (
    Command("list", dead.list_dead, "duetime dead list mail"),
    Command("show", dead.show, "duetime dead show mail welcome-42"),
    Command(
        "respawn", dead.respawn, "duetime dead respawn mail welcome-42", "duetime dead respawn mail --all --tries 3"
    ),
    Command("delete", dead.delete, "duetime dead delete mail welcome-42", "duetime dead delete mail --all --yes"),
    Command("prune", dead.prune, "duetime dead prune mail --older-than 30d"),
)

FAILED = (
    Command("list", dead.list_dead, "duetime failed list mail"),
    Command("retry", dead.respawn, "duetime failed retry mail welcome-42", "duetime failed retry mail --all"),
    Command("forget", dead.delete, "duetime failed forget mail welcome-42"),
    Command("flush", dead.flush, "duetime failed flush mail --yes"),
    Command("prune", dead.prune, "duetime failed prune mail --older-than 24h"),
)
"""Laravel's names of the commands for dead letters, for people who know them; not shown in the help."""

RECURRING = (Command("list", recurring.list_schedules, "duetime recurring list", "duetime recurring list --json"),)

TOPIC = (
    Command(
        "add",
        topic.add,
        "duetime topic add mail https://shop.example.com/mail --delay 10m",
        "duetime topic add pay https://shop.example.com/pay --method POST --retry-if '{res.code} != 200' --alert "
        "ops@example.com --set success=2xx --set secret=new",
    ),
    Command("list", topic.list_topics, "duetime topic list"),
    Command("counters", topic.counters, "duetime topic counters", "duetime topic counters --json"),
    Command("show", topic.show, "duetime topic show mail"),
    Command("edit", topic.edit, "duetime topic edit mail --delay 5m --set cap=3"),
    Command("offline", topic.offline, "duetime topic offline mail"),
    Command("online", topic.online, "duetime topic online mail"),
    Command("remove", topic.remove, "duetime topic remove mail --yes"),
    Command("test", topic.sample, "duetime topic test mail", 'duetime topic test mail --body \'{"to": "ann"}\''),
)

TOKEN = (
    Command(
        "create",
        tokens.create,
        "duetime token create --namespace shop --description 'the web shop' --url http://127.0.0.1:7778",
        "duetime token create --scope write --url redis://localhost",
    ),
    Command("list", tokens.list_tokens, "duetime token list --url http://127.0.0.1:7778"),
    Command("revoke", tokens.revoke, "duetime token revoke 5f2a09c1 --url http://127.0.0.1:7778"),
)

JOURNAL = (
    Command("list", journal.list_nodes, "duetime journal list", "duetime journal list --json"),
    Command("end", journal.end, "duetime journal end --url sqlite:///var/lib/duetime/jobs.db"),
)

ALERT = (
    Command(
        "add",
        alert.add,
        "duetime alert add ops@example.com --url redis://localhost",
        "duetime alert add slack://token@channel --url redis://localhost",
        "duetime alert add slack://token@payments --channel payments --url redis://localhost",
    ),
    Command("remove", alert.remove, "duetime alert remove ops@example.com --url redis://localhost"),
    Command(
        "mail-server",
        alert.mail_server,
        "duetime alert mail-server --host smtp.example.com --from duetime@example.com --url redis://localhost",
    ),
    Command("list", alert.list_alerts, "duetime alert list --url redis://localhost"),
    Command("test", alert.test, "duetime alert test --url redis://localhost"),
)


def register(app: typer.Typer) -> None:
    add_commands(app, JOBS, panel="Jobs")
    for name, summary, group in (
        ("queue", "Queues as a whole: list, count, pause, purge.", QUEUE),
        ("dead", "Dead letters: look at them, bring them back, remove them.", DEAD),
        ("recurring", "Recurring tasks: what runs when.", RECURRING),
        ("topic", "Topics: queues whose jobs are delivered to a callback URL.", TOPIC),
        ("token", "Tokens: who may use a namespace.", TOKEN),
        ("journal", "The journal: who writes it, and its end.", JOURNAL),
        ("alert", "Alerts: who hears when something is wrong.", ALERT),
    ):
        noun = typer.Typer(name=name, help=summary, no_args_is_help=True)
        add_commands(noun, group)
        app.add_typer(noun, rich_help_panel="Queues")
    failed = typer.Typer(name="failed", help="Laravel's names for `duetime dead`.", no_args_is_help=True, hidden=True)
    add_commands(failed, FAILED)
    app.add_typer(failed)
    add_commands(app, WATCH, panel="Looking around")


def add_commands(app: typer.Typer, commands: tuple[Command, ...], *, panel: str | None = None) -> None:
    """Each with its examples below its help."""
    for command in commands:
        lines = ["Examples:", *(f"  {escape(line)}" for line in command.examples)]
        app.command(command.name, epilog="\n".join(lines), rich_help_panel=panel)(command.function)
