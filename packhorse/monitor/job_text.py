"""A job in a few words: its call, the moment that matters, and what there is to say about it.

The lists of the command line and of the web pages use it.
"""

from __future__ import annotations

import msgspec

from packhorse.core.job import FINAL, HELD, OF_TASK, Job, State
from packhorse.core.outcome import Failure
from packhorse.monitor.why import why_aborted

_LONG_ARGS = 4_000
_LONG_VALUE = 60


def cut(text: str, most: int) -> str:
    """The beginning of a text that may be long."""
    return text if len(text) <= most else f"{text[:most]}…"


def call_text(job: Job, *, whole: bool = False) -> str:
    """The job as a call, on one line: "resize(image_id=7, width=800)". Long values are cut unless it shall be whole."""
    return f"{job.task}({_arguments(job.args, whole)})"


def _arguments(text: str, whole: bool) -> str:
    if len(text) > _LONG_ARGS and not whole:
        return cut(text.strip("{}"), _LONG_VALUE)
    most = len(text) if whole else _LONG_VALUE
    args = msgspec.json.decode(text)
    if not isinstance(args, dict):  # by the hand of who wrote into the storage himself
        return cut(text, most)
    return ", ".join(f"{name}={cut(msgspec.json.encode(value).decode(), most)}" for name, value in args.items())


def python_text(job: Job) -> str:
    """The Python that enqueues such a job: "app.enqueue('resize', {'image_id': 7})"."""
    return f"app.enqueue({job.task!r}, {msgspec.json.decode(job.args)!r})"


def try_text(job: Job) -> str:
    """Which try it is, will be or was, of how many."""
    if job.max_attempts == OF_TASK:  # of whose options nothing is known here
        return str(job.attempt)
    return f"{job.attempt}/{job.max_attempts}"


def state_text(job: Job) -> str:
    """The state, and what else one wants to know of it at a glance."""
    if job.is_halted:
        return f"{job.state} (halted)"
    if job.is_forced:
        return f"{job.state} (forced)"
    if job.state in HELD and job.abort_at is not None:
        return f"{job.state} (stopping)"
    return job.state


def moment(job: Job) -> int | None:
    """The time that matters: when it is due, since when it waits or runs, when it ended."""
    if job.state in (State.SCHEDULED, State.RETRYING):
        return job.due_at
    if job.state in FINAL:
        return job.finished_at
    return job.queued_at if job.state is State.QUEUED else job.started_at or job.updated_at


def remark(job: Job) -> str:
    """What a running job says, or why a failed one failed."""
    if job.state is State.RUNNING:
        percent = "" if job.progress is None else f"{job.progress} %"
        return " ".join(filter(None, [percent, job.progress_text or job.checkin]))
    if job.state is State.COMPLETED:
        return ""
    return error_line(job)


def error_line(job: Job) -> str:
    """The last failure on one line; of an aborted job, why it was."""
    if job.state is State.ABORTED:
        return why_aborted(job).partition("\n")[0]
    if job.error is None:
        return ""
    return Failure.from_json(job.error).summary().partition("\n")[0]
