"""Laravel's retry rules: when a job is tried again, after how long, and when it has failed."""

from typing import Any

import msgspec
import pytest

from duetime.model.backoff import Fixed, Listed
from duetime.model.job import Delivery, Lease, Priority
from duetime.model.names import Queue
from duetime.wire.payload import Payload
from duetime.worker.retry_rules import Policy, Verb, decide, refused
from duetime.worker.runs import DONE, Ended, Failure, Outcome, Run

NOW = 1_800_000_000_000
POLICY = Policy(tries=4, backoff=Fixed(9_000))
FAILURE = Failure("ValueError", "no")
RAISED = Outcome(Ended.RAISED, FAILURE)


def make(*, used: int = 1, tries: int = 0, attempt: int = 0, **fields: Any) -> Run:
    lease = Lease(Queue("default", "mail"), "id", NOW, attempt or used)
    delivery = Delivery(lease, b"", NOW, NOW, Priority.NORMAL, tries, used)
    payload = Payload(displayName="send", name="send", data=msgspec.Raw(b"{}"), uuid="u", **fields)
    return Run(1, delivery, payload, timeout_s=1)


@pytest.mark.parametrize(
    ("run", "verb", "failed"),
    [
        (make(used=3), Verb.RELEASE, False),  # the worker's tries
        (make(used=4), Verb.KILL, True),
        (make(used=1, maxTries=2), Verb.RELEASE, False),
        (make(used=2, maxTries=2), Verb.KILL, True),
        (make(used=2, tries=2, maxTries=2), Verb.RELEASE, True),  # the store counts the same: dead by its tries
        (make(used=50, maxTries=0), Verb.RELEASE, False),  # unlimited
        (make(used=50, maxTries=2, retryUntil=NOW // 1000 + 1), Verb.RELEASE, False),
        (make(used=1, maxTries=2, retryUntil=NOW // 1000), Verb.KILL, True),
        (make(used=1, attempt=4, maxTries=2, retryUntil=NOW // 1000), Verb.RELEASE, False),  # brought back
        (make(used=2, attempt=5, maxTries=2, retryUntil=NOW // 1000), Verb.KILL, True),
    ],
)
def test_after_an_exception(run: Run, verb: Verb, failed: bool) -> None:
    decision = decide(run, RAISED, policy=POLICY, backoff=None, now_ms=NOW)
    assert (decision.verb, decision.failed, decision.failure) == (verb, failed, FAILURE)


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (make(used=4), None),
        (make(used=5), "attempted too many times: 5 of 4"),
        (make(used=3, maxTries=2), "attempted too many times: 3 of 2"),
        (make(used=9, maxTries=2, retryUntil=NOW // 1000 + 1), None),
        (make(used=1, retryUntil=NOW // 1000), "a time that has passed"),
        (make(used=1, attempt=4, retryUntil=NOW // 1000), None),  # brought back after that time
        (make(used=5, attempt=8, retryUntil=NOW // 1000), "attempted too many times: 5 of 4"),
    ],
)
def test_before_the_run(run: Run, why: str | None) -> None:
    failure = refused(run, POLICY, NOW)
    assert (failure is None) is (why is None)
    assert failure is None or why is None or why in failure.message


def test_the_backoff_is_the_codes_then_the_payloads_then_the_workers() -> None:
    code, run = Listed((1_000, 2_000)), make(used=2, backoff="3,4.5,6")

    def delay(run: Run, backoff: Any, after_ms: int | None = None) -> int:
        outcome = Outcome(Ended.RETRY, None, after_ms)
        return decide(run, outcome, policy=POLICY, backoff=backoff, now_ms=NOW).delay_ms

    assert delay(run, code) == 2_000
    assert delay(run, None) == 4_500
    assert delay(make(used=2), None) == 9_000
    assert delay(make(used=2, backoff="nonsense"), None) == 9_000
    assert delay(make(used=3, backoff="3,4"), None) == 4_000
    assert delay(run, code, after_ms=7) == 7
    assert delay(make(used=1, delay=600), None) == 9_000  # the first delay is no backoff


def test_other_ends() -> None:
    def verb(outcome: Outcome, **fields: Any) -> tuple[Verb, bool]:
        decision = decide(make(**fields), outcome, policy=POLICY, backoff=None, now_ms=NOW)
        return decision.verb, decision.failed

    assert verb(DONE) == (Verb.ACK, False)
    assert verb(Outcome(Ended.CANCEL)) == (Verb.ACK, False)
    assert verb(Outcome(Ended.FAIL, FAILURE)) == (Verb.KILL, True)
    assert verb(Outcome(Ended.BACK)) == (Verb.GIVE_BACK, False)
    assert verb(Outcome(Ended.TIMED_OUT)) == (Verb.RELEASE, False)
    assert verb(Outcome(Ended.TIMED_OUT), failOnTimeout=True) == (Verb.KILL, True)
    assert verb(Outcome(Ended.GONE), used=4) == (Verb.KILL, True)
