"""What must hold in every state of the queue model, and in those in which nothing more can happen."""

from tests.proof.queue_model import State


def _is_stored(state: State, job_id: int, born: int) -> bool:
    job = state.jobs[job_id]
    return job is not None and job.born >= born


def is_kept(state: State) -> bool:
    """A job that was answered as accepted and has not ended is in the store or, after a wipe, in the journal."""
    return all(
        _is_stored(state, *life)
        or (state.is_wiped and not state.journal.isdisjoint({("accepted", *life), ("replaced", *life)}))
        for life in state.accepted - state.ended
    )


INVARIANTS = {
    "accepted means kept": is_kept,
    "nothing is delivered after its end was answered": lambda state: not state.delivered_after_end,
    "a lease has one holder": lambda state: not state.two_holders,
}


def is_goal(state: State) -> bool:
    """Nothing more can happen. An id of which nothing came later has its accepted job in the store, or it has ended."""
    latest = {life for life in state.accepted if life[1] == state.last_born[life[0]]}
    return all(_is_stored(state, *life) for life in latest - state.ended)
