"""Errors of the command line: what, why, where the wrong value came from and what to try, on stderr, with an exit code.

Every error that ends a command goes through `report`. A user's mistake shows a traceback only with -vv, and no
password is ever shown. The standard streams are prepared here too: they may be closed, or full.
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
    """What scripts may rely on; docs/cli.md lists them."""

    OK = 0
    UNSUCCESSFUL = 1  # a job ended dead or aborted, or some of many could not be changed
    USAGE = 2
    NOT_FOUND = 3
    STORAGE = 4  # unreachable, or of an unknown version
    REFUSED = 5  # needs --yes, or a token
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


class ErrorMessage(NamedTuple):
    """An error as people and programs read it."""

    exit_code: int
    code: str
    what: str
    why: str | None = None
    source: str | None = None
    hint: str | None = None


class ErrorStyle(NamedTuple):
    """How to print an error. `storage_source` says how the storage was chosen."""

    as_json: bool = False
    verbose: int = 0
    color: bool | None = None
    storage_source: str | None = None


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

_OTHER_NAMES_OF_N = ("--limit", "--number", "--count", "--max", "--lines", "--rows")
"""What other programs call -n."""


def report(error: BaseException, style: ErrorStyle) -> int:
    """Print an error on stderr; return the exit code."""
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return ExitCode.INTERRUPTED
    message = _message(error, style.storage_source)
    with contextlib.suppress(OSError):  # if stderr cannot be written to, the exit code must do
        say(_as_json(message) if style.as_json else _as_text(message, style.color), err=True)
        if style.verbose >= 2:
            say(masked(escape_lines("".join(traceback.format_exception(error)))), err=True)
    return message.exit_code


def masked(text: str) -> str:
    """The text without the passwords in its URLs; `name:TOKEN@host` is a hint and has none."""
    return re.sub(r"(?<=:)(?!//|TOKEN@)[^\s:@'\"]+(?=@)", "***", mask_urls(text))


def _message(error: BaseException, storage_source: str | None) -> ErrorMessage:
    if isinstance(error, click.ClickException):
        return _usage_message(error)
    if is_output_error(error):
        why, hint = getattr(error, "strerror", None), "look at the file or the pipe behind stdout"
        return ErrorMessage(ExitCode.UNSUCCESSFUL, "output", "cannot print the output", why, hint=hint)
    if not isinstance(error, PackhorseError):
        return _bug_message(error)
    if isinstance(error, CommandError):
        code = error.exit_code.name.lower()
        return ErrorMessage(error.exit_code, code, error.what, error.why, error.source, error.hint)
    code = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__).lower()
    exit_code = next((number for kind, number in _EXIT_CODES if isinstance(error, kind)), ExitCode.UNSUCCESSFUL)
    source = storage_source if isinstance(error, StorageError) else getattr(error, "source", None)
    return ErrorMessage(exit_code, code, error.what, error.why, source, error.hint)


def _usage_message(error: click.ClickException) -> ErrorMessage:
    what = " ".join(error.format_message().split()).rstrip(".")  # choices are on lines of their own
    what = what[:1].lower() + what[1:]
    ctx = getattr(error, "ctx", None)
    hint = f"{ctx.command_path} --help" if ctx else "packhorse --help"
    if isinstance(error, click.NoSuchOption) and error.possibilities:
        # Compare without the dashes: with them any two options are alike.
        near = [name for name in error.possibilities if did_you_mean(error.option_name.strip("-"), [name.strip("-")])]
        what = f"no such option {error.option_name!r}" + (f"; did you mean {' or '.join(near)}?" if near else "")
    if isinstance(error, click.NoSuchOption) and ctx and error.option_name in _OTHER_NAMES_OF_N:
        known = {name for parameter in ctx.command.params for name in parameter.opts}
        if "-n" in known:
            what = f"there is no option {error.option_name}; did you mean -n?"
    return ErrorMessage(ExitCode.USAGE, "usage", what, source=getattr(error, "source", None), hint=hint)


def _bug_message(error: BaseException) -> ErrorMessage:
    what = f"this is a bug in Packhorse: {type(error).__name__}: {error}"
    hint = f"report it with {_save_traceback(error)}, and with the output of packhorse doctor --report"
    return ErrorMessage(ExitCode.UNSUCCESSFUL, "bug", what, hint=hint)


def _save_traceback(error: BaseException) -> str:
    import tempfile  # slow to import, and rarely needed

    text = masked("".join(traceback.format_exception(error)))
    try:
        with tempfile.NamedTemporaryFile("w", prefix="packhorse-error-", suffix=".txt", delete=False) as file:
            file.write(text)
        return f"the traceback in {file.name}"
    except OSError:
        return "the traceback that -vv shows"


def _as_text(message: ErrorMessage, color: bool | None) -> str:
    lines = [paint("error:", "red", err=True, wanted=color) + " " + _indented(message.what, 7)]
    for word, text in (("why", message.why), ("from", message.source), ("try", message.hint)):
        if text:
            lines.append(paint(f"  {word + ':':<6}", "dim", err=True, wanted=color) + _indented(text, 8))
    return "\n".join(lines)


def _indented(text: str, indent: int) -> str:
    return masked(escape_lines(text)).rstrip().replace("\n", "\n" + " " * indent)


def _as_json(message: ErrorMessage) -> str:
    fields = {
        "code": message.code,
        "message": message.what,
        "why": message.why,
        "from": message.source,
        "hint": message.hint,
    }
    return json_text({"error": {name: masked(text) for name, text in fields.items() if text}})


# --- the standard streams ---------------------------------------------------------------------------------------------

_OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def prepare_streams() -> None:
    """Open the standard streams that are closed, and let no character be an error.

    With a closed stdout (`packhorse work >&-`), the next file or socket that is opened would get its number, and our
    output.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)  # the lowest free number: its own, as the earlier ones are open
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # for terminals without UTF-8


def is_output_error(error: BaseException) -> bool:
    """Is stdout full or closed? Storages have errors of their own."""
    return isinstance(error, OSError) and error.errno in _OUTPUT_ERRORS and error.filename is None


def discard_stdout() -> None:
    """Drop what is still to be printed, else the interpreter tries again when it exits, and complains."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
