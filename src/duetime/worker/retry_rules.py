"""Decides what happens to a job after a run: Laravel's retry rules (its payload section 4.2), as pure functions.

`used` is Laravel's attempts: the deliveries that count, so a job that a worker gave back has not lost a try. The
backoff is looked up in the task's code when it is needed, not frozen at the push; the payload's is for jobs of tasks
that say nothing.
"""

import logging
from dataclasses import dataclass
from enum import Enum

from duetime.model.backoff import Backoff, Exponential, parse, wait_ms
from duetime.model.errors import DuetimeError
from duetime.worker.runs import Ended, Failure, Outcome, Run

log = logging.getLogger("duetime.worker")

MAX_ATTEMPTS = "duetime.MaxAttemptsExceeded"
UNKNOWN_BACKOFF = Exponential(base_ms=250, factor=1.25, cap_ms=60_000)
"""The delay of a job whose task this worker does not know. It grows slowly, because a worker that knows the task may be
there and has to get hold of the job first.
"""


class Verb(Enum):
    ACK = "ack"
    RELEASE = "release"
    KILL = "kill"
    GIVE_BACK = "give_back"


@dataclass(frozen=True)
class Decision:
    """`failed`: this is the end of the job. `by_task`: the task asked for it."""

    verb: Verb
    delay_ms: int = 0
    failure: Failure | None = None
    failed: bool = False
    by_task: bool = False


@dataclass(frozen=True)
class Policy:
    """The worker's defaults; `tries` 0 is unlimited."""

    tries: int
    backoff: Backoff


def max_tries(run: Run, policy: Policy) -> int:
    """The job's tries, else the worker's; 0 with retryUntil, which takes the place of tries."""
    if retry_until(run) is not None:
        return 0
    return run.payload.maxTries if run.payload.maxTries is not None else (run.delivery.tries or policy.tries)


def retry_until(run: Run) -> float | None:
    """`retryUntil` of the payload, in unix seconds. None for a dead letter that was brought back after that time: an
    operator wants it tried again, so its tries count. Such a job has more deliveries than counted ones.
    """
    until, delivery = run.payload.retryUntil, run.delivery
    if until is not None and delivery.lease.attempt > delivery.used and until * 1000 <= delivery.due_at:
        return None
    return until


def refused(run: Run, policy: Policy, now_ms: int) -> Failure | None:
    """Why a job must not even be started."""
    until, allowed = retry_until(run), max_tries(run, policy)
    name = run.payload.displayName or run.payload.name
    if until is not None and until * 1000 <= now_ms:
        return Failure(MAX_ATTEMPTS, f"{name} was to be retried until a time that has passed")
    if 0 < allowed < run.delivery.used:
        return Failure(MAX_ATTEMPTS, f"{name} has been attempted too many times: {run.delivery.used} of {allowed}")
    return None


def decide(run: Run, outcome: Outcome, *, policy: Policy, backoff: Backoff | None, now_ms: int) -> Decision:
    """`backoff` is what the task's code says now."""
    failure = outcome.failure
    match outcome.ended:
        case Ended.DONE | Ended.CANCEL:
            return Decision(Verb.ACK, by_task=outcome.ended is Ended.CANCEL, failure=failure)
        case Ended.BACK:
            return Decision(Verb.GIVE_BACK)
        case Ended.POSTPONED | Ended.UNKNOWN:
            delay_ms = outcome.after_ms or 0
            if outcome.ended is Ended.UNKNOWN:
                given_back = run.delivery.lease.attempt - run.delivery.used
                delay_ms = UNKNOWN_BACKOFF.delay_ms(given_back + 1)
            return Decision(Verb.GIVE_BACK, delay_ms, failure, by_task=True)
        case Ended.FAIL:
            return Decision(Verb.KILL, failure=failure, failed=True, by_task=True)
        case Ended.RAISED | Ended.RETRY | Ended.TIMED_OUT | Ended.GONE:
            by_task = outcome.ended is Ended.RETRY
            if _is_last(run, policy, now_ms) or (outcome.ended is Ended.TIMED_OUT and run.payload.failOnTimeout):
                return last(run, failure, by_task=by_task)
            delay_ms = outcome.after_ms
            if delay_ms is None:
                delay_ms = _wait_ms(run, policy, backoff)
            return Decision(Verb.RELEASE, delay_ms, failure, by_task=by_task)


def last(run: Run, failure: Failure | None, *, by_task: bool = False) -> Decision:
    """The end of a job. Where its tries are used up in the store as well, a release ends it with the reason "tries"."""
    tries = run.delivery.tries
    verb = Verb.RELEASE if 0 < tries <= run.delivery.used else Verb.KILL
    return Decision(verb, failure=failure, failed=True, by_task=by_task)


def _is_last(run: Run, policy: Policy, now_ms: int) -> bool:
    until = retry_until(run)
    if until is not None:
        return until * 1000 <= now_ms
    allowed = max_tries(run, policy)
    return 0 < allowed <= run.delivery.used or 0 < run.delivery.tries <= run.delivery.used


def _wait_ms(run: Run, policy: Policy, own: Backoff | None) -> int:
    """A policy of the task that fails is logged, and the worker's takes its place."""
    failures = max(1, run.delivery.used)
    try:
        return wait_ms(_backoff(run, policy, own), failures)
    except DuetimeError as error:
        log.warning("backoff_failed", extra={"task": run.payload.name, "error": error.message})
        return policy.backoff.delay_ms(failures)


def _backoff(run: Run, policy: Policy, own: Backoff | None) -> Backoff:
    if own is not None:
        return own
    if run.payload.backoff:
        try:
            return parse(run.payload.backoff)
        except DuetimeError:
            return policy.backoff
    return policy.backoff
