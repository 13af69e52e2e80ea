"""Stdin, stdout and stderr as the program finds them: closed, full, or unable to hold every character.

`main` prepares them before anything else, and lets go of stdout when nobody can be reached there.
"""

from __future__ import annotations

import errno
import os
import sys

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
