"""Outcomes: what an attempt came to, as a value. A worker hands them to the storage's `finish`.

Each carries the token of the attempt. `ran` is how long it ran, 0 if nobody has measured it, and `ago` how long ago it
ended, in microseconds: durations, because a worker's clock is nobody's truth.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from packhorse.core.failure import Failure
from packhorse.core.job import Reason, Token


class Completed(msgspec.Struct, frozen=True, gc=False, tag=str.lower):
    """The task returned; `result` is JSON text."""

    token: Token
    result: str | None = None
    ran: int = 0
    ago: int = 0


class Failed(msgspec.Struct, frozen=True, gc=False, tag=str.lower):
    """The task raised or ran too long. `retry_in` is the wait before the next attempt; None: no more attempts. Whether
    there is one is decided by the job's `max_attempts`, or by those that the task allows: for this error, or at all,
    where the job leaves it to its task."""

    token: Token
    failure: Failure
    retry_in: int | None = None
    reason: Reason = Reason.FAILED
    ran: int = 0
    ago: int = 0
    max_attempts: int | None = None


class Snoozed(msgspec.Struct, frozen=True, gc=False, tag=str.lower):
    """The task asked to be called again later; not a failure."""

    token: Token
    delay: int
    ran: int = 0
    ago: int = 0


class Stopped(msgspec.Struct, frozen=True, gc=False, tag=str.lower):
    """The worker ended the attempt because of an abort or a timeout over the whole job."""

    token: Token
    reason: Reason = Reason.ABORTED
    failure: Failure | None = None
    ran: int = 0
    ago: int = 0


class Halted(msgspec.Struct, frozen=True, gc=False, tag=str.lower):
    """The child process that ran it died: nobody can say what the task came to."""

    token: Token
    why: str
    ran: int = 0
    ago: int = 0
    version: str | None = None  # of the user's own code


class Overrun(msgspec.Struct, frozen=True, gc=False, tag=str.lower):
    """Its time was over, and its worker did not end it; a foreman says so. Whatever that worker says later is stale."""

    token: Token
    why: str
    retry_in: int | None = None
    ran: int = 0
    ago: int = 0
    max_attempts: int | None = None


class Released(msgspec.Struct, frozen=True, gc=False, tag=str.lower):
    """Handed back unharmed, because the worker was told to stop or does not know the task: nothing is counted."""

    token: Token
    why: str
    delay: int = 0  # before it comes into line again
    ran: int = 0
    ago: int = 0


Outcome = Completed | Failed | Snoozed | Stopped | Halted | Overrun | Released


class Verdict(StrEnum):
    """What the storage says to a token."""

    ACCEPTED = "accepted"
    REPEATED = "repeated"  # it had been accepted before; the first answer was lost on the way
    STALE = "stale"  # the job has changed hands; nothing was changed
