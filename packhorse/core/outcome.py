"""The outcome of an attempt, as a value. A worker passes it to the storage's `finish`.

A task may return `Retry`, `Abort` or `Snooze` instead of a result. `Failure` describes an exception as text: type,
message, traceback and place. Exceptions are never rebuilt from it. Failures with the same cause are counted together.

Each outcome carries the token of its attempt, `ran`, the duration of the attempt (0 if not measured), and `ago`, the
time since its end, in microseconds. They are durations because a worker's clock is not the storage's.
"""

from __future__ import annotations

import re
import traceback
from enum import StrEnum
from types import TracebackType

import msgspec

from packhorse.core.clock import Duration, microseconds
from packhorse.core.job import Reason, Token


class Retry(Exception):
    """Try again, after a chosen wait or as the backoff says. Counts as a failed attempt."""

    def __init__(self, why: str = "the task asked for another attempt", *, after: Duration | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.after = None if after is None else microseconds(after, "after")


class Abort:
    """End the job as aborted, without more attempts."""

    def __init__(self, why: str = "the task aborted itself") -> None:
        self.why = why


class Snooze:
    """Call me again later; neither a success nor a failure."""

    def __init__(self, delay: Duration) -> None:
        self.delay = microseconds(delay, "delay")


NAME_LIMIT = 1_000
MESSAGE_LIMIT = 4_000
TRACEBACK_LIMIT = 32_000

_LIBRARY = re.compile(
    r"site-packages|dist-packages|[/\\]lib[/\\]python\d|[/\\]packhorse[/\\](worker|client|core)|^<frozen"
)
# A quoted value, or a word that continues over joining characters: an id, a number, an address, a time, a version, a
# host and port.
_QUOTED_OR_WORD = re.compile(r"(?<!\w)(?:'[^']*'|\"[^\"]*\")|(?:(?<!\w)-(?=\d))?\w+(?:[-.+@]+\w+|:(?=\d)\w+)*")
_DIGIT_OR_AT = re.compile(r"[\d@]")
_HEX_OF_LETTERS = re.compile(r"[a-fA-F]{8,}")


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """One failed attempt."""

    type: str
    message: str
    traceback: str | None = None
    place: str | None = None  # file:line of the innermost frame in the user's own code, if any
    function: str | None = None  # its function
    goes_on: int | None = None  # it did not end when asked: microseconds that it may still run (0: no limit),
    worker: str | None = None  # and the worker it runs in
    final: str | None = (
        None  # why it was the last although attempts were left: an option's name, arguments, waits, result
    )
    version: str | None = None  # of the user's own code, as configured for the worker

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """The failure for this exception."""
        frame = _own_frame(error.__traceback__)
        return cls(
            type=_shorten(type(error).__qualname__, NAME_LIMIT),
            message=_message_of(error),
            traceback=_traceback_of(error),
            place=_place(frame),
            function=_shorten(frame.tb_frame.f_code.co_qualname, NAME_LIMIT) if frame else None,
        )

    @classmethod
    def from_json(cls, text: str) -> Failure:
        """The failure that `to_json` wrote; for an invalid text, one that says so."""
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return cls("BrokenRecord", f"the stored failure cannot be read: {text[:200]!r}")

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @staticmethod
    def goes_on_in(text: str | None) -> str | None:
        """The worker in which the attempt of this stored failure may still run, or None."""
        if text is None or '"goes_on"' not in text:  # the usual case
            return None
        failure = Failure.from_json(text)
        return failure.worker if failure.goes_on is not None else None

    def summary(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type

    def pattern(self) -> str:
        """The summary without everything that varies between cases: quoted values, and every word that has a digit or
        is an address."""
        message = _QUOTED_OR_WORD.sub(_mask, self.message.partition("\n")[0])
        return (f"{self.type}: {message}" if self.message else self.type)[:300]

    def cause(self, task: str) -> str:
        """A short name for "this kind of failure of this task", the same for all of its cases.

        Where the function is known, its line does not matter: a line added above must not make a new cause.
        """
        import hashlib  # OpenSSL is slow to load, and most programs that enqueue do not need it

        place = self.place or ""
        if self.function is not None:
            place = f"{place.rpartition(':')[0]}:{self.function}"
        known = f"{task}\0{self.type}\0{self.pattern()}\0{place}"
        return hashlib.sha256(known.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _mask(found: re.Match[str]) -> str:
    word = found[0]
    varies = word[0] in "'\"" or _DIGIT_OR_AT.search(word) or _HEX_OF_LETTERS.fullmatch(word)
    return "<…>" if varies else word


# An error's own code may fail, but its attempt has ended: leave out what it cannot show.


def _message_of(error: BaseException) -> str:
    try:
        return _shorten(str(error), MESSAGE_LIMIT)
    except Exception as failed:  # noqa: BLE001 - the code of a user's error may raise anything
        return f"(its message cannot be shown: __str__ raised {type(failed).__name__})"


def _traceback_of(error: BaseException) -> str | None:
    try:
        return _shorten("".join(traceback.format_exception(error)), TRACEBACK_LIMIT)
    except Exception:  # noqa: BLE001 - as above
        return None


def _own_frame(trace: TracebackType | None) -> TracebackType | None:
    """The innermost frame of the user's own code, where the fix usually belongs; of any code, if none is theirs."""
    innermost = own = None
    while trace is not None:
        innermost = trace
        if not is_library(trace.tb_frame.f_code.co_filename):
            own = trace
        trace = trace.tb_next
    return own or innermost


def is_library(file: str) -> bool:
    """Does this file belong to Python, an installed package or Packhorse, rather than to the user?"""
    return _LIBRARY.search(file) is not None


def _place(trace: TracebackType | None) -> str | None:
    return None if trace is None else _tidy(f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}")


def _tidy(text: str) -> str:
    """Text that every storage accepts. Paths and names need not be valid UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def _shorten(text: str, limit: int) -> str:
    """Cut the middle of long text: the beginning says what was called, the end says what failed."""
    text = _tidy(text)
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters left out …\n{text[-half:]}"


class Completed(msgspec.Struct, frozen=True, gc=False, tag=str.lower):
    """The task returned; `result` is JSON text."""

    token: Token
    result: str | None = None
    ran: int = 0
    ago: int = 0


class Failed(msgspec.Struct, frozen=True, gc=False, tag=str.lower):
    """The task raised or ran too long. `retry_in` is the wait before the next attempt; None: no more attempts. Whether
    there is one depends on the job's `max_attempts`, or, if the job leaves it to its task, on those that the task
    allows for this error."""

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
    """The child process that ran it died; the outcome of the task is unknown."""

    token: Token
    why: str
    ran: int = 0
    ago: int = 0
    version: str | None = None  # of the user's own code


class Overrun(msgspec.Struct, frozen=True, gc=False, tag=str.lower):
    """A time limit was over, and its worker did not end it; its foreman writes the end. A later outcome from that
    worker is stale."""

    token: Token
    why: str
    retry_in: int | None = None
    ran: int = 0
    ago: int = 0
    max_attempts: int | None = None


class Released(msgspec.Struct, frozen=True, gc=False, tag=str.lower):
    """Handed back unharmed, because the worker stops or does not know the task: nothing is counted."""

    token: Token
    why: str
    delay: int = 0  # before it is queued again
    ran: int = 0
    ago: int = 0


Outcome = Completed | Failed | Snoozed | Stopped | Halted | Overrun | Released


class Verdict(StrEnum):
    """The storage's answer to an outcome."""

    ACCEPTED = "accepted"
    REPEATED = "repeated"  # it had been accepted before; the first answer was lost
    STALE = "stale"  # the job has changed hands; nothing was changed
