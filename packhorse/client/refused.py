"""What a storage refused to do to a job, told to whoever wanted it: what stood in the way, and what to do instead.

`JobHandle` asks, when a step has changed nothing because of the state that the job is in.
"""

from __future__ import annotations

from packhorse.core.errors import WrongState
from packhorse.core.job import COMPLETED, HELD, WAITING, Operation, State

_ACTIONS = {
    Operation.ABORT: "abort",
    Operation.FORCE_START: "force start",
    Operation.SET_PRIORITY: "set the priority of",
    Operation.SET_QUEUE: "move",
    Operation.RETRY: "retry",
    Operation.DELETE: "delete",
}


def refused(job_id: str, operation: Operation, state: State) -> WrongState:
    """The error to be raised; the job is in this state."""
    return WrongState(job_id, _ACTIONS[operation], state, hint=_advice(operation, state))


def _advice(operation: Operation, state: State) -> str:
    match operation:
        case Operation.SET_PRIORITY:
            return "it has ended, and has no place in line any more"
        case Operation.SET_QUEUE if state not in HELD and state is not COMPLETED:
            return "it is in that queue already"
        case Operation.DELETE:
            return "abort it first, or delete it with force, which does both"
        case Operation.ABORT:
            return "it has ended already"
    if state in WAITING:
        return "it waits in line already; force start makes it the next"
    if state in HELD:
        return "a worker has it already"
    if state is COMPLETED:
        return "what it did is done; a copy of it is a new job"
    return "retry it first"
