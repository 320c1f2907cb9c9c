"""`duetime topic ...`: queues whose jobs are delivered to a callback URL."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from duetime.cli.options import Target, YesOption, argument, option
from duetime.cli.output import safe
from duetime.client.topics import Topics
from duetime.model.errors import DuetimeError, InvalidRequest
from duetime.model.humanise import span
from duetime.model.topic import Method
from duetime.wire.messages import SampleOut, TopicOut

TopicArgument = Annotated[str, argument("TOPIC", "The topic's key, which is its queue's name.")]
TopicsArgument = Annotated[list[str], argument("TOPIC", "Keys of topics.")]


class CallFailed(DuetimeError):
    """The sample call would be tried again."""

    code = "call_failed"
    status = 409


@dataclass(frozen=True)
class TopicOptions:
    """The fields that most topics set; `--set` takes any of the others."""

    name: Annotated[str | None, option("TEXT", "What people call it.")] = None
    delay: Annotated[
        str | None, option("DURATION", "The delay of a job, unless the request that adds it names one.")
    ] = None
    method: Annotated[Method | None, option(None, "GET: fields in the query; POST: a form; else the body.")] = None
    timeout: Annotated[str | None, option("DURATION", "How long a call may take; 3s if not given.")] = None
    retry_if: Annotated[str | None, option("CONDITION", "When an answer asks for a retry: '{res.code} != 200'.")] = None
    priority: Annotated[str | None, option("WORD", "high, normal or low.")] = None
    alert: Annotated[
        list[str],
        option("ADDRESS", "Recipient of alerts: a channel, or a mail address in alert_mail_domains; repeatable."),
    ] = field(default_factory=list[str])
    more: Annotated[
        list[str],
        option(
            "FIELD=VALUE",
            "Any other field: schedule, cap (retries), lift_cap, success, php_fields, creator, verify_tls, "
            "in_flight, rate, secret (new: a generated one); repeatable.",
            "--set",
        ),
    ] = field(default_factory=list[str])

    def fields(self) -> dict[str, Any]:
        given = {name: value for name, value in vars(self).items() if value not in (None, []) and name != "more"}
        return given | dict(map(_pair, self.more))


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidRequest(f"field must be NAME=VALUE, got {text!r}")
    return name.strip(), value


def add(
    topic: TopicArgument,
    callback: Annotated[str, argument("URL", "Where its jobs are delivered.")],
    options: TopicOptions,
    target: Target,
) -> None:
    """Add a topic: its jobs are delivered to the URL when they are due.

    The body is posted unchanged, and a 2xx status is a success. php-delayqueue's rules are `--method GET --set
    success=body --set php_fields=true`. A secret that `--set secret=new` creates is shown only once.

    Examples:
        duetime topic add mail https://shop.example.com/mail --delay 10m
        duetime topic add pay https://shop.example.com/pay --retry-if '{res.code} != 200' --set secret=new
    """
    with target.connect(new=True) as client:
        _show(Topics(client).add(topic, callback, **options.fields()), target, "added")


def list_topics(target: Target) -> None:
    """List the topics of the namespace, with their counts."""
    with target.connect() as client:
        topics = Topics(client).list_topics()
    target.answer.table(
        [topic_document(topic) for topic in topics], _columns(topics), nothing=f"no topics in {target.space}"
    )


def _columns(topics: Sequence[TopicOut]) -> dict[str, list[str]]:
    counts = ("written", "notified", "deleted", "failed")
    return {
        "topic": [topic.topic for topic in topics],
        "name": [safe(topic.name) for topic in topics],
        "status": ["halted" if topic.halted else str(topic.status) for topic in topics],
        "priority": [topic.priority for topic in topics],
        "delay ": [span(topic.delay_ms) for topic in topics],
        **{
            f"{name} ": [f"{getattr(topic.totals, name):,}" if topic.totals else "?" for topic in topics]
            for name in counts
        },
        "callback": [f"{topic.method} {topic.callback}" for topic in topics],
    }


def counters(target: Target) -> None:
    """Show php-delayqueue's counters under their own names.

    TOPIC-ID:total_write, :total_notfiy and :total_del; by day :tw:, :tn:, :te: and :tdel:; and the sums of the
    namespace in its pool as redis:POOL:dq_write_total_nums and so on. Days are UTC days. Removed topics are
    included until their last job is gone.

    Examples:
        duetime topic counters
        duetime topic counters --json
    """
    with target.connect() as client:
        found = Topics(client).counters()
    text = "\n".join(f"{name} {count}" for name, count in found.counters.items())
    target.answer.show(msgspec.to_builtins(found), safe(text))


def show(topic: TopicArgument, target: Target) -> None:
    """Show all fields and counts of a topic.

    Examples:
        duetime topic show mail
    """
    with target.connect() as client:
        found = Topics(client).get(topic)
    target.answer.show(topic_document(found), _lines(found))


def edit(
    topic: TopicArgument,
    options: TopicOptions,
    target: Target,
    callback: Annotated[str | None, option("URL", "Where its jobs are delivered.")] = None,
) -> None:
    """Change a topic; every server process follows within a second.

    A new secret and the old one both sign for a day; `--set secret=` ends signing.

    Examples:
        duetime topic edit mail --delay 5m --set cap=3
    """
    fields = options.fields() | ({"callback": callback} if callback is not None else {})
    if not fields:
        raise InvalidRequest("topic edit must have at least one field to change")
    with target.connect() as client:
        _show(Topics(client).edit(topic, **fields), target, "changed")


def offline(topics: TopicsArgument, target: Target) -> None:
    """Refuse new jobs; jobs that were accepted are still delivered.

    Examples:
        duetime topic offline mail
    """
    with target.connect() as client:
        for topic in topics:
            _show(Topics(client).offline(topic), target, "is offline")


def online(topics: TopicsArgument, target: Target) -> None:
    """Accept jobs, and deliver again after a halt.

    Examples:
        duetime topic online mail
    """
    with target.connect() as client:
        for topic in topics:
            _show(Topics(client).online(topic), target, "is online")


def remove(
    topic: TopicArgument,
    target: Target,
    yes: YesOption = False,
) -> None:
    """Remove a topic; its jobs fail when they are due.

    Examples:
        duetime topic remove mail --yes
    """
    with target.connect() as client:
        if not yes:
            waiting = client.queue(topic).size()
            question = f"Remove the topic {topic}? Its {waiting:,} jobs fail when they are due."
            target.answer.confirm(question)
        _show(Topics(client).remove(topic), target, "removed")


def sample(
    topic: TopicArgument,
    target: Target,
    body: Annotated[str | None, option("JSON", "The body of the job that the call is about.")] = None,
) -> None:
    """Send one sample call and show the request and the answer.

    The server makes the call, or this program if the URL is a store's. Nothing is stored, counted or repeated. The exit
    code is 1 if the job would be tried again.

    Examples:
        duetime topic test mail
        duetime topic test mail --body '{"to": "ann"}'
    """
    with target.connect() as client:
        made = Topics(client).test(topic, None if body is None else body.encode())
    target.answer.show(msgspec.to_builtins(made), _sample_text(made))
    if made.verdict != "done":
        raise CallFailed(f"the job would be tried again ({made.verdict}): {made.why}")


def _sample_text(sample: SampleOut) -> str:
    request, answer = sample.request, sample.answer
    lines = [f"> {request.method} {request.url}", *(f"> {name}: {value}" for name, value in request.headers.items())]
    lines += [">", f"> {request.body}"] if request.body else []
    if answer.error:
        lines.append(f"< {answer.error} ({span(answer.ms)})")
    else:
        lines.append(f"< HTTP {answer.status} ({span(answer.ms)})")
        lines += [f"< {name}: {value}" for name, value in answer.headers.items()]
        lines += ["<", *(f"< {line}" for line in answer.body.splitlines())]
    return safe("\n".join([*lines, sample.verdict]))


def topic_document(topic: TopicOut) -> dict[str, Any]:
    return msgspec.structs.asdict(topic) | {
        "totals": topic.totals and msgspec.structs.asdict(topic.totals),
        "days": {day: msgspec.structs.asdict(counts) for day, counts in topic.days.items()},
    }


def _show(topic: TopicOut, target: Target, what: str) -> None:
    text = f"{topic.namespace}/{topic.topic} {what}"
    if topic.secret:
        text += f"\nits secret, shown this once: {topic.secret}"
    target.answer.show(topic_document(topic), text)


def _lines(topic: TopicOut) -> str:
    document = topic_document(topic)
    days = document.pop("days")
    totals: dict[str, int] = document.pop("totals") or {}
    shown = [(name, value) for name, value in document.items() if value not in ("", [], None)]
    lines = [f"{name:<12} {_cell(name, value)}" for name, value in shown]
    for title, counts in (("total", totals), *sorted(days.items())[-7:]):
        lines.append(f"{title:<12} " + ", ".join(f"{count:,} {name}" for name, count in counts.items()))
    return safe("\n".join(lines))


def _cell(name: str, value: object) -> str:
    if name.endswith("_ms") and isinstance(value, int):
        return span(value)
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
