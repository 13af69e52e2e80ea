"""How the command line says no: what, why, where the value came from and what to try, on stderr, with an exit code.

Everything that ends a command early goes through `report`. A user's mistake shows no traceback unless -vv asks for it,
and no password is ever shown.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
import traceback
from enum import IntEnum
from typing import NamedTuple

import click

from packhorse.cli.output import escape_lines, json_text, paint, say
from packhorse.core.errors import (
    AccessError,
    AppBroken,
    AppNotFound,
    BadValue,
    ClientNotFound,
    CopyTimeout,
    JobError,
    JobNotFound,
    PackhorseError,
    QueueNotFound,
    ScheduleNotFound,
    SettingsError,
    StorageError,
    TaskError,
    TaskNotFound,
    WaitTimeout,
    WorkerNotFound,
    did_you_mean,
)
from packhorse.core.settings import mask_urls


class ExitCode(IntEnum):
    """What a script may rely on; docs/cli.md lists them."""

    OK = 0
    UNSUCCESSFUL = 1  # a job ended dead or aborted, or some of many could not be changed
    USAGE = 2
    NOT_FOUND = 3
    STORAGE = 4  # unreachable, or of a version that is not understood
    REFUSED = 5  # it wants --yes, or a token
    UNHEALTHY = 6
    TIMED_OUT = 7
    INTERRUPTED = 130


class CommandError(PackhorseError):
    """A mistake that only the command line can see. `source` says where the wrong value came from."""

    def __init__(
        self,
        what: str,
        exit_code: ExitCode,
        *,
        why: str | None = None,
        source: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(what, why=why, hint=hint)
        self.exit_code = exit_code
        self.source = source


class Told(NamedTuple):
    """An error in the words that people and programs read."""

    exit_code: int
    code: str
    what: str
    why: str | None = None
    source: str | None = None
    hint: str | None = None


_EXIT_CODES: tuple[tuple[type[BaseException], ExitCode], ...] = (
    (JobNotFound, ExitCode.NOT_FOUND),
    (TaskNotFound, ExitCode.NOT_FOUND),
    (QueueNotFound, ExitCode.NOT_FOUND),
    (ScheduleNotFound, ExitCode.NOT_FOUND),
    (AppNotFound, ExitCode.NOT_FOUND),
    (AppBroken, ExitCode.USAGE),
    (WorkerNotFound, ExitCode.NOT_FOUND),
    (ClientNotFound, ExitCode.NOT_FOUND),
    (AccessError, ExitCode.REFUSED),
    (WaitTimeout, ExitCode.TIMED_OUT),
    (JobError, ExitCode.UNSUCCESSFUL),
    (CopyTimeout, ExitCode.TIMED_OUT),
    (StorageError, ExitCode.STORAGE),
    (SettingsError, ExitCode.USAGE),
    (TaskError, ExitCode.USAGE),
    (BadValue, ExitCode.USAGE),
)


_HOW_MANY = ("--limit", "--number", "--count", "--max", "--lines", "--rows")
"""What other programs call -n."""


class Manner(NamedTuple):
    """How to tell of an error. `storage_source` says how the storage was chosen."""

    as_json: bool = False
    verbose: int = 0
    color: bool | None = None
    storage_source: str | None = None


def report(error: BaseException, manner: Manner) -> int:
    """Tell of an error on stderr; answers the exit code."""
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return ExitCode.INTERRUPTED
    told = _tell(error, manner.storage_source)
    with contextlib.suppress(OSError):  # if stderr cannot be written to, the exit code has to do
        say(_as_json(told) if manner.as_json else _as_text(told, manner.color), err=True)
        if manner.verbose >= 2:
            say(masked(escape_lines("".join(traceback.format_exception(error)))), err=True)
    return told.exit_code


def masked(text: str) -> str:
    """The text without the passwords of the URLs in it; `name:TOKEN@host` is a hint and has none."""
    return re.sub(r"(?<=:)(?!//|TOKEN@)[^\s:@'\"]+(?=@)", "***", mask_urls(text))


# --- in words -------------------------------------------------------------------------------------------------------


def _tell(error: BaseException, storage_source: str | None) -> Told:
    if isinstance(error, click.ClickException):
        return _misused(error)
    if cannot_hold(error):
        why, hint = getattr(error, "strerror", None), "look at the file or the pipe that stdout leads to"
        return Told(ExitCode.UNSUCCESSFUL, "output", "what was asked for cannot be printed", why, hint=hint)
    if not isinstance(error, PackhorseError):
        return _bug(error)
    code = _snake_case(type(error).__name__)
    if isinstance(error, CommandError):
        return Told(error.exit_code, error.exit_code.name.lower(), error.what, error.why, error.source, error.hint)
    exit_code = next((number for kind, number in _EXIT_CODES if isinstance(error, kind)), ExitCode.UNSUCCESSFUL)
    source = storage_source if isinstance(error, StorageError) else getattr(error, "source", None)
    return Told(exit_code, code, error.what, error.why, source, error.hint)


def _misused(error: click.ClickException) -> Told:
    what = " ".join(error.format_message().split()).rstrip(".")  # choices come on lines of their own
    what = what[:1].lower() + what[1:]
    context = getattr(error, "ctx", None)
    hint = f"{context.command_path} --help" if context else "packhorse --help"
    if isinstance(error, click.NoSuchOption) and error.possibilities:
        # The dashes, which all have, would make any two of them alike.
        near = [name for name in error.possibilities if did_you_mean(error.option_name.strip("-"), [name.strip("-")])]
        what = f"no such option {error.option_name!r}" + (f"; did you mean {' or '.join(near)}?" if near else "")
    if isinstance(error, click.NoSuchOption) and context and error.option_name in _HOW_MANY:
        known = {name for parameter in context.command.params for name in parameter.opts}
        if "-n" in known:
            what = f"there is no option {error.option_name}; did you mean -n?"
    return Told(ExitCode.USAGE, "usage", what, source=getattr(error, "source", None), hint=hint)


def _bug(error: BaseException) -> Told:
    what = f"something went wrong that should not: {type(error).__name__}: {error}"
    return Told(
        ExitCode.UNSUCCESSFUL,
        "bug",
        what,
        hint=f"report it with {_saved(error)}, and with what packhorse doctor --report prints",
    )


def _saved(error: BaseException) -> str:
    import tempfile  # slow to import, and hardly ever needed

    text = masked("".join(traceback.format_exception(error)))
    try:
        with tempfile.NamedTemporaryFile("w", prefix="packhorse-error-", suffix=".txt", delete=False) as file:
            file.write(text)
        return f"the traceback in {file.name}"
    except OSError:
        return "the traceback that -vv shows"


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


# --- on paper -------------------------------------------------------------------------------------------------------


def _as_text(told: Told, color: bool | None) -> str:
    lines = [paint("error:", "red", err=True, wanted=color) + " " + _tidy(told.what, 7)]
    for word, text in (("why", told.why), ("from", told.source), ("try", told.hint)):
        if text:
            lines.append(paint(f"  {word + ':':<6}", "dim", err=True, wanted=color) + _tidy(text, 8))
    return "\n".join(lines)


def _tidy(text: str, indent: int) -> str:
    return masked(escape_lines(text)).rstrip().replace("\n", "\n" + " " * indent)


def _as_json(told: Told) -> str:
    error = {"code": told.code, "message": told.what, "why": told.why, "from": told.source, "hint": told.hint}
    words = {name: masked(text) for name, text in error.items() if text}
    return json_text({"error": words})


_CANNOT_HOLD = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def prepare() -> None:
    """Make sure that all three are there, and that no character is a reason to fail.

    Where one was closed (`packhorse work >&-`), the next file or socket to be opened would take its place, and what is
    printed would go into that.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)  # the lowest that is free: its own, as those before it are there
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 is no reason to fail


def cannot_hold(error: BaseException) -> bool:
    """Does this error say that what was printed has no room, or no place at all? Storages have errors of their own."""
    return isinstance(error, OSError) and error.errno in _CANNOT_HOLD and error.filename is None


def let_go_of_stdout() -> None:
    """Whatever is still to be printed is for nobody; else the interpreter would try again at its end, and complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
