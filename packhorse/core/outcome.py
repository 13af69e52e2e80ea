"""Outcomes: what an attempt came to, as a value. A worker passes them to the storage's `finish`.

A task may return `Retry`, `Abort` or `Snooze` instead of a result. `Failure` describes an exception as text: type,
message, traceback and place. Exceptions are never rebuilt from it. Failures with the same cause are counted together.

Each outcome carries the token of its attempt, `ran`, how long the attempt ran (0 if not measured), and `ago`, how long
ago it ended, in microseconds. They are durations because a worker's clock is not the storage's.
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
    """Try again, after a while of one's own choosing, or as the backoff says. Counts as a failed attempt."""

    def __init__(self, why: str = "the task asked for another attempt", *, after: Duration | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.after = None if after is None else microseconds(after, "after")


class Abort:
    """End the job for good as aborted; no more attempts."""

    def __init__(self, why: str = "the task ended itself") -> None:
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
# A quoted value, or a word with what joins its parts: an id, a number, an address, a time, a version, a host and port.
_QUOTED_OR_WORD = re.compile(r"(?<!\w)(?:'[^']*'|\"[^\"]*\")|(?:(?<!\w)-(?=\d))?\w+(?:[-.+@]+\w+|:(?=\d)\w+)*")
_DIGIT_OR_AT = re.compile(r"[\d@]")
_HEX_OF_LETTERS = re.compile(r"[a-fA-F]{8,}")


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """One failed attempt."""

    type: str
    message: str
    traceback: str | None = None
    place: str | None = None  # file:line of the innermost frame that is the user's own, if any is
    function: str | None = None  # its name
    goes_on: int | None = None  # it did not end when asked: microseconds that it may still run (0: no limit),
    worker: str | None = None  # and where
    final: str | None = None  # why it was the last although tries were left: an option's name, arguments, waits, result
    version: str | None = None  # of the user's own code, as the worker was told

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """The failure that this exception is."""
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
        """The failure that is stored so; one that tells of it, if somebody has garbled it."""
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return cls("BrokenRecord", f"what is stored of the failure cannot be read: {text[:200]!r}")

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @staticmethod
    def goes_on_in(text: str | None) -> str | None:
        """The worker in which the attempt whose failure is stored so may still run; None: it has ended."""
        if text is None or '"goes_on"' not in text:  # as nearly always
            return None
        failure = Failure.from_json(text)
        return failure.worker if failure.goes_on is not None else None

    def summary(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type

    def pattern(self) -> str:
        """The summary with everything that varies between two cases taken out: quoted values, and every word that has
        a digit or is an address, as a whole."""
        message = _QUOTED_OR_WORD.sub(_mask, self.message.partition("\n")[0])
        return (f"{self.type}: {message}" if self.message else self.type)[:300]

    def cause(self, task: str) -> str:
        """A short name for "this kind of failure of this task", the same for all of its cases.

        Where the function is known, its line does not matter: a line that is added above must not make a new cause.
        """
        import hashlib  # OpenSSL is slow to load, and most programs that enqueue need none of it

        place = self.place or ""
        if self.function is not None:
            place = f"{place.rpartition(':')[0]}:{self.function}"
        known = f"{task}\0{self.type}\0{self.pattern()}\0{place}"
        return hashlib.sha256(known.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _mask(found: re.Match[str]) -> str:
    word = found[0]
    varies = word[0] in "'\"" or _DIGIT_OR_AT.search(word) or _HEX_OF_LETTERS.fullmatch(word)
    return "<…>" if varies else word


# An error's own code may fail, and its attempt has ended all the same: what cannot be told is left out.


def _message_of(error: BaseException) -> str:
    try:
        return _shorten(str(error), MESSAGE_LIMIT)
    except Exception as failed:  # noqa: BLE001 - whatever the code of a user's error raises
        return f"(its message cannot be shown: __str__ raised {type(failed).__name__})"


def _traceback_of(error: BaseException) -> str | None:
    try:
        return _shorten("".join(traceback.format_exception(error)), TRACEBACK_LIMIT)
    except Exception:  # noqa: BLE001 - as above
        return None


def _own_frame(trace: TracebackType | None) -> TracebackType | None:
    """The innermost frame of the user's own code, where the mending begins; of any code, if none is their own."""
    innermost = own = None
    while trace is not None:
        innermost = trace
        if not is_library(trace.tb_frame.f_code.co_filename):
            own = trace
        trace = trace.tb_next
    return own or innermost


def is_library(file: str) -> bool:
    """Is this a file of Python's, of an installed package or of Packhorse, and not of the user's own code?"""
    return _LIBRARY.search(file) is not None


def _place(trace: TracebackType | None) -> str | None:
    return None if trace is None else _tidy(f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}")


def _tidy(text: str) -> str:
    """Text that every storage takes. A path, and so a place, need not be UTF-8; nor need a name that was given."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def _shorten(text: str, limit: int) -> str:
    """Long text loses its middle: the beginning says what was called, the end says what failed."""
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
