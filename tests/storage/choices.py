"""What the model machine chooses from: jobs to be wished for, endings to be told, spans of time, and how often each.

Everything is small on purpose: few queues, few keys, few moments, so that things meet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from packhorse.conformance.builders import FAILURE, LEASE
from packhorse.core.clock import DAY, HOUR, MINUTE, SECOND
from packhorse.core.job import Reason, Token, UniqueLock
from packhorse.core.outcome import Completed, Failed, Failure, Halted, Outcome, Overrun, Released, Snoozed, Stopped
from packhorse.storage.records import Retention

QUEUES = ("mail", "pics", "sums")
TASKS = ("send", "draw")
CLIENTS = ("carl", "dora")
SCHEDULES = ("nightly", "hourly")
STRICT_KEYS = ("one",)  # never replaced, no period, until finished: see invariants.check_unique
LOOSE_KEYS = ("red",)
ELSEWHERE = (*QUEUES, "other")  # no worker serves the last one
CODE_VERSIONS = ("v1", "v2")
_NO_NAME = Failure("KeyError", "'name' in 17", place="draw.py:3")
FAILURES = (
    FAILURE,
    _NO_NAME,
    *(replace(_NO_NAME, version=version) for version in CODE_VERSIONS),
    Failure("MemoryError", ""),
)


@dataclass(frozen=True)
class Wish:
    """A job to be enqueued. `again` n > 0: with the n-th latest id, not a new one."""

    queue: str = "mail"
    task: str = "send"
    priority: int = 1
    again: int = 0
    delay: int = 0
    is_dated: bool = False  # due at a named moment, not in so long
    expires: int | None = None
    total_timeout: int | None = None
    lock: UniqueLock | None = None
    length: int = 0  # of the arguments, at least
    max_halts: int = 2
    persistent: bool = False
    subscriber: str | None = None


@dataclass(frozen=True)
class Ending:
    """An outcome to be told. `token` is a pick, see `Machine.token`."""

    token: int = 0
    what: type[Outcome] = Completed
    wait: int | None = None  # before the next attempt
    reason: Reason = Reason.FAILED
    failure: int | None = 0
    ran: int = 0
    ago: int = 0

    def of(self, token: Token) -> Outcome:
        times = {"ran": self.ran, "ago": self.ago}
        failure = None if self.failure is None else FAILURES[self.failure]
        if self.what is Completed:
            return Completed(token, result=f'"{token.fence}"', **times)
        if self.what is Failed:
            return Failed(token, failure or FAILURE, retry_in=self.wait, reason=self.reason, **times)
        if self.what is Snoozed:
            return Snoozed(token, self.wait or 0, **times)
        if self.what is Halted:
            return Halted(token, "the child died", **times)
        if self.what is Overrun:
            return Overrun(token, "its time was over", retry_in=self.wait, **times)
        if self.what is Released:
            return Released(token, "the worker stops", self.wait or 0, **times)
        return Stopped(token, self.reason, failure, **times)


# --- what is drawn --------------------------------------------------------------------------------------------------

DELAYS = st.sampled_from([0, 1, SECOND, MINUTE, HOUR])
WAITS = st.sampled_from([None, 0, 1, SECOND, MINUTE])
DURATIONS = st.sampled_from([None, 1, SECOND, MINUTE])
LIMITS = st.sampled_from([None, 1, SECOND, 20 * SECOND, HOUR])
BATCHES = st.sampled_from([500, 500, 2, 1])
BY = st.sampled_from([None, "eve"])
PICKS = st.integers(0, 9)
ANY_TOKENS = st.integers(-4, 10)  # see Machine.token
LOST = st.sampled_from([False, False, True])

_PLACE: dict[str, st.SearchStrategy[Any]] = {
    "queue": st.sampled_from(QUEUES),
    "task": st.sampled_from(TASKS),
    "priority": st.sampled_from([1, 1, 5, 10]),
}
STRICT_LOCKS = st.builds(UniqueLock, st.sampled_from(STRICT_KEYS), on_conflict=st.sampled_from(["keep", "reject"]))
LOOSE_LOCKS = st.builds(
    UniqueLock,
    st.sampled_from(LOOSE_KEYS),
    period=st.sampled_from([None, None, SECOND, HOUR]),
    until=st.sampled_from(["finish", "start"]),
    on_conflict=st.sampled_from(["keep", "replace", "reject"]),
)
PLAIN_WISHES = st.builds(Wish, **_PLACE)
WISHES = st.one_of(
    PLAIN_WISHES,
    st.builds(
        Wish,
        **_PLACE,
        delay=DELAYS,
        is_dated=st.booleans(),
        expires=LIMITS,
        total_timeout=LIMITS,
        persistent=st.booleans(),
    ),
    st.builds(
        Wish, **_PLACE, lock=st.one_of(STRICT_LOCKS, LOOSE_LOCKS), delay=DELAYS, again=st.sampled_from([0, 0, 3])
    ),
    st.builds(
        Wish,
        **_PLACE,
        again=st.integers(0, 5),
        length=st.sampled_from([0, 2_048, 2_049, 5_000]),
        lock=st.one_of(st.none(), LOOSE_LOCKS),
        max_halts=st.sampled_from([1, 3]),
        persistent=st.booleans(),
        subscriber=st.sampled_from([None, *CLIENTS]),
    ),
)
WEIGHTS = st.one_of(
    st.just(dict.fromkeys(QUEUES, 1)), st.dictionaries(st.sampled_from(QUEUES), st.integers(1, 4), min_size=1)
)
ENDINGS = st.one_of(
    st.builds(Ending, ANY_TOKENS, ran=st.sampled_from([0, 2_500, 20 * SECOND]), ago=st.sampled_from([0, SECOND])),
    st.builds(
        Ending,
        ANY_TOKENS,
        st.just(Failed),
        wait=st.sampled_from([None, None, 0, 1, SECOND]),
        reason=st.sampled_from([Reason.FAILED, Reason.JOB_TIMEOUT]),
        failure=st.integers(0, len(FAILURES) - 1),
        ran=st.sampled_from([0, MINUTE]),
    ),
    st.builds(Ending, ANY_TOKENS, st.sampled_from([Snoozed, Overrun, Released]), wait=WAITS),
    st.builds(Ending, ANY_TOKENS, st.just(Halted), ran=st.sampled_from([0, SECOND])),
    st.builds(
        Ending,
        ANY_TOKENS,
        st.just(Stopped),
        reason=st.sampled_from([Reason.ABORTED, Reason.JOB_TIMEOUT]),
        failure=st.sampled_from([None, 0]),
    ),
)
STEPS_IN_TIME = st.sampled_from(
    [1, SECOND, 5 * SECOND, LEASE, LEASE + 1, MINUTE, HOUR, 4 * HOUR, DAY, 4 * DAY, 95 * DAY]
)
SHORT = Retention(completed=SECOND, dead=MINUTE, aborted=HOUR, events=MINUTE, clients=MINUTE)
RETENTIONS = st.sampled_from([SHORT, SHORT, replace(SHORT, events=DAY, clients=DAY), Retention()])

STEERING = ("abort", "abort", "force_start", "set_priority", "set_queue", "set_queue", "retry", "retry", "delete")
