"""What a task raises to say how its job should end, and what it hears when its time is over."""

from duetime.model.clock import Duration, duration_ms


class Retry(Exception):
    """Try again after a while. Without `after` the task's backoff decides. Uses one of the job's tries."""

    def __init__(self, message: str = "", *, after: Duration | None = None) -> None:
        self.after_ms = None if after is None else duration_ms(after)
        super().__init__(message)


class Postpone(Exception):
    """Not now: run the job after a while, as if this run had never begun. Uses none of its tries."""

    def __init__(self, message: str = "", *, after: Duration) -> None:
        self.after_ms = duration_ms(after)
        super().__init__(message)


class Cancel(Exception):
    """There is nothing to do any more: the job is removed and counts neither as done nor as failed."""


class Fail(Exception):
    """Trying again would not help: the job goes to the dead letters at once."""


class TimedOut(BaseException):
    """The job ran longer than it may. Raised inside the task, so that it can clean up; it ends all the same."""

    def __init__(self) -> None:
        super().__init__("the job ran longer than its timeout")


TIMED_OUT = f"{TimedOut.__module__}.{TimedOut.__qualname__}"
"""How a failure names it."""
