"""Faults that are planted in the code to see whether the simulation finds them: `make mutants`.

Each mutant is one change of the text of one file. It is applied to a copy of `src/duetime`, and a process of its own
lives through seeds with that copy until something is wrong. The table at the end names the first seed that found each
mutant, and those that nothing found. `make mutants ARGS="--only fence --seeds 2000"` tries some of them.

`test_simulation.py` checks that the text of each mutant still occurs once in its file.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SEEDS = 3000
HANGS_AFTER_S = 900.0

WAITERS, BATCHER, REAPER = "engine/waiters.py", "engine/batcher.py", "engine/reaper.py"
ENGINE, QUEUE, STORE = "engine/engine.py", "stores/memory/queue.py", "stores/memory/store.py"
HELD = "consumer/held_leases.py"
GROUP, MEMBERS, MEMBER = "stores/group/verbs.py", "stores/group/members.py", "stores/group/member.py"


class Mutant(NamedTuple):
    name: str
    file: str
    old: str
    new: str


class Found(NamedTuple):
    mutant: Mutant
    seed: int | None
    """None: nothing found it."""
    how: str


MUTANTS = [
    # --- waiting
    Mutant(
        "a consumer registers after its first reserve",
        WAITERS,
        """            queue_waiters.parked[waiter] = None
            waiter.lists.append(queue_waiters)
        try:
            found = await first
""",
        """            waiter.lists.append(queue_waiters)
        try:
            found = await first
            for queue_waiters in waiter.lists:
                queue_waiters.parked[waiter] = None
""",
    ),
    Mutant(
        "the answer of a reserve replaces what a newer wake-up said",
        WAITERS,
        "if self._seen_version > version and self._next_at is not None:",
        "if False:",
    ),
    Mutant(
        "a job that comes during a reserve starts no second one",
        WAITERS,
        "        if self._repeat:\n            self.signal()",
        "        if False:\n            self.signal()",
    ),
    Mutant(
        "the timer of a queue is never set",
        WAITERS,
        "self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)",
        "pass",
    ),
    Mutant(
        "wake-ups of other processes are ignored",
        WAITERS,
        "self._waiters.on_job_available(wake.queue, wake.due_at)",
        "pass",
    ),
    Mutant(
        "the safety net ignores the jobs that it finds",
        WAITERS,
        "                        if head is not None:",
        "                        if False:",
    ),
    Mutant(
        "jobs for a consumer that has gone are not given back",
        WAITERS,
        "            self.reserving.waiters.give_back(deliveries)",
        "            pass",
    ),
    Mutant(
        "jobs for a consumer that is cancelled in the same instant are not given back",
        WAITERS,
        "                self.give_back(waiter.answer.result())",
        "                pass",
    ),
    Mutant(
        "a freed consumer is not offered to its other queues",
        WAITERS,
        "            one.on_waiter_free()",
        "            pass",
    ),
    Mutant(
        "every freed consumer starts a reserve",
        WAITERS,
        "if self._next_at is not None and self._timer is None and not self._is_reserving:",
        "if not self._is_reserving:",
    ),
    Mutant(
        "a consumer stays busy after an error",
        WAITERS,
        "            self.fail(error)\n        self.free()",
        "            self.fail(error)",
    ),
    Mutant(
        "an earlier job does not make the timer end earlier",
        WAITERS,
        "if self._next_at is None or due_at < self._next_at or is_outdated:",
        "if self._next_at is None or is_outdated:",
    ),
    Mutant(
        "a busy consumer is chosen for a second reserve",
        WAITERS,
        "if waiter.busy or waiter.answer.done():",
        "if waiter.answer.done():",
    ),
    # --- batching
    Mutant(
        "jobs for a caller that was cancelled in the same instant are not given back",
        BATCHER,
        "                self.orphan(answer.result())",
        "                pass",
    ),
    Mutant(
        "jobs for a caller that went away during the call are not given back",
        BATCHER,
        "            else:\n                self.orphan(answer)",
        "            else:\n                pass",
    ),
    Mutant(
        "every request of a shared call gets the same jobs",
        BATCHER,
        "shares.append(list(deliveries[at : at + limit]))",
        "shares.append(list(deliveries[:limit]))",
    ),
    Mutant(
        "answers of a shared ack go to other callers",
        BATCHER,
        "shares.append(answers[at : at + len(request)])",
        "shares.append(answers[: len(request)])",
    ),
    Mutant(
        "callers get their answers before they are flushed",
        BATCHER,
        "if self._flushed and (pending := self._flushed()):",
        "if self._closed and (pending := None):",
    ),
    Mutant(
        "a failed flush is not reported",
        BATCHER,
        "elif isinstance(failure := flushed.exception(), Exception):",
        "if False:",
    ),
    Mutant(
        "requests that come during a single-job call are forgotten",
        BATCHER,
        "        if inbox.entries:\n            with suppress(StoreUnavailable):",
        "        if False:\n            with suppress(StoreUnavailable):",
    ),
    Mutant(
        "the reaper does not hear of leases",
        BATCHER,
        "                self.batcher.reaper.run_within(ask.ttr_ms / 1000)",
        "                pass",
    ),
    Mutant(
        "a failed call leaves its callers without an answer",
        BATCHER,
        "            for reply in replies:\n                _fail(reply, own_copy(error))",
        "            pass",
    ),
    # --- the reaper and the engine
    Mutant(
        "the reaper sleeps past the next end of a lease",
        REAPER,
        "return min(max(reaped.next_at - reaped.now, 0) / 1000, LONGEST_REST_S)",
        "return 60.0",
    ),
    Mutant("the reaper is not woken", REAPER, "            self._is_earlier.set()", "            pass"),
    Mutant(
        "jobs of the first queues are kept when a later queue fails",
        ENGINE,
        "            self.give_back_later(found)",
        "            pass",
    ),
    Mutant(
        "a reserve of several queues leases more than its limit",
        ENGINE,
        "ReserveRequest(queue, ttr_ms, limit - len(found))",
        "ReserveRequest(queue, ttr_ms, limit)",
    ),
    # --- the rules of a queue
    Mutant(
        "a job is delivered before it is due",
        QUEUE,
        "while index and index[0][0] <= self._now and self._scans_left:",
        "while index and index[0][0] <= self._now + 20 and self._scans_left:",
    ),
    Mutant("an expired job is delivered", QUEUE, "            if job.expired(self._now):", "            if False:"),
    Mutant(
        "the fence does not compare attempts",
        QUEUE,
        "(job.born, job.attempt) == (lease.born, lease.attempt)",
        "job.born == lease.born",
    ),
    Mutant(
        "the fence does not compare incarnations",
        QUEUE,
        "(job.born, job.attempt) == (lease.born, lease.attempt)",
        "job.attempt == lease.attempt",
    ),
    Mutant(
        "a delivery does not count as an attempt",
        QUEUE,
        "        job.attempt += 1\n",
        "",
    ),
    Mutant(
        "a job whose tries are used up waits again",
        QUEUE,
        "if event is not Event.GIVEN_BACK and 0 < job.tries <= job.used:",
        "if event is not Event.GIVEN_BACK and 0 < job.tries < job.used:",
    ),
    Mutant(
        "a lease is taken back before it ends",
        QUEUE,
        "for until, job_id in stored.leases[:limit] if until <= now]",
        "for until, job_id in stored.leases[:limit] if until <= now + 50]",
    ),
    Mutant(
        "a replacement may have the born of the job that it replaces",
        QUEUE,
        "born = max(now, self.floor + 1, above + 1)",
        "born = now",
    ),
    Mutant(
        "giving a job back uses up a try",
        STORE,
        "        job.used -= 1\n",
        "",
    ),
    Mutant(
        "a lease that is renewed keeps its end",
        STORE,
        "stored.put(job, LEASED, self._clock.now_ms() + ttr_ms)",
        "stored.put(job, LEASED, job.sort_at)",
    ),
    Mutant(
        "an ack of a lost lease removes the job",
        STORE,
        "            now = self._clock.now_ms()\n            return None if",
        """            stored = self._stored(lease.queue)
            stored.end(stored.jobs[lease.id])
            return None
            return None if""",
    ),
    # --- groups
    Mutant(
        "jobs of one member are kept when the next member fails",
        GROUP,
        "    if not now and problem:",
        "    if problem:",
    ),
    Mutant(
        "a group asks one member for jobs",
        GROUP,
        "names = sorted(waiting, key=lambda name: (waiting[name], name)) or list(heads)[:1]",
        "names = list(heads)[:1]",
    ),
    Mutant(
        "a group does not say when the next job is due",
        GROUP,
        "min(waiting.values(), default=None), now, expired, paused",
        "None, now, expired, paused",
    ),
    Mutant(
        "a job on a member that is down counts as gone",
        GROUP,
        "        return self._problems.get(place) if self._is_open(place) else None",
        "        return None",
    ),
    Mutant(
        "a member that was down is not tried again",
        MEMBER,
        "            self._opener = asyncio.create_task(run_duty(trying, first_after_s=TRY_AFTER_S))",
        "            pass",
    ),
    Mutant(
        "an id is not searched at its earlier home before it is pushed",
        GROUP,
        "        for old in homes[1:]:",
        "        for old in ():",
    ),
    Mutant(
        "a process pushes by a new layout before the others know it",
        MEMBERS,
        "        await asyncio.sleep(SPREAD_S)\n        self._use(current)",
        "        self._use(current)",
    ),
    # --- consumers
    Mutant(
        "held leases are not renewed",
        HELD,
        "await self._store().extend(lease, self._lease_ms)",
        "pass",
    ),
    Mutant(
        "an ack is not repeated after an outage",
        HELD,
        "                await asyncio.sleep(outage.pause_s)",
        "                raise",
    ),
    Mutant(
        "acks that come during a call are forgotten",
        HELD,
        "            while pending := self._acks[queue]:",
        "            if pending := self._acks[queue]:",
    ),
]


def try_mutant(mutant: Mutant, seeds: int) -> Found:
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "duetime")
        shutil.copytree(ROOT / "src" / "duetime", package, ignore=shutil.ignore_patterns("__pycache__", "assets"))
        text = (package / mutant.file).read_text()
        if text.count(mutant.old) != 1:
            return Found(mutant, None, f"its text occurs {text.count(mutant.old)} times in {mutant.file}")
        (package / mutant.file).write_text(text.replace(mutant.old, mutant.new))
        command = [sys.executable, "-m", "tests.simulation.mutants", "--live", folder, "--seeds", str(seeds)]
        environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
        try:
            lived = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=HANGS_AFTER_S, check=False
            )
        except subprocess.TimeoutExpired:
            return Found(mutant, None, f"not over after {HANGS_AFTER_S:.0f} s")
    lines = lived.stdout.splitlines() or [lived.stderr[-500:]]
    seed, _, how = lines[-1].partition(" ")
    return Found(mutant, int(seed), how) if seed.isdigit() else Found(mutant, None, lines[-1])


def live_with(folder: str, seeds: int) -> None:
    """In the process of a mutant: live until something is wrong, and print the seed and what it was."""
    import duetime
    from tests.simulation.world import live

    if not duetime.__file__.startswith(folder):
        sys.exit(f"the mutant is not imported, but {duetime.__file__}")
    for seed in range(seeds):
        try:
            complaints = live(seed).books.complaints
        except BaseException as error:  # a hang, a task left behind, an error nobody looked at
            complaints = [f": {type(error).__name__}: {error}"]
        if complaints:
            print(seed, complaints[0].split(": ", 2)[1])
            return
    print("not found")


def table(found: Sequence[Found]) -> str:
    lines = [
        f"{'seed ' + str(one.seed) if one.seed is not None else 'NOT FOUND':<11} {one.mutant.name}  [{one.how[:60]}]"
        for one in found
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description="Plant faults and see which seeds find them.")
    parser.add_argument("--only", default=[""], nargs="+", help="parts of the names of the mutants to try")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many seeds each mutant lives through at most")
    parser.add_argument("--live", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.live:
        live_with(options.live, options.seeds)
        return 0
    chosen = [mutant for mutant in MUTANTS if any(part in mutant.name for part in options.only)]
    began = monotonic()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(lambda mutant: try_mutant(mutant, options.seeds), chosen))
    missed = [one for one in found if one.seed is None]
    print(table(found))
    print(
        f"{len(found) - len(missed)} of {len(found)} found in {monotonic() - began:.0f} s, {options.seeds} seeds each"
    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
