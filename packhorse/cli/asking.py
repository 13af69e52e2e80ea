"""Asking whether the user is sure. Only a yes is a yes, and where there is nobody to ask nothing is done."""

from __future__ import annotations

import sys
from pathlib import Path

from packhorse.cli.failing import CommandError, ExitCode
from packhorse.cli.output import paint, say


def is_sure(what: str, refusal: str, hint: str = "say --yes") -> bool:
    """Show what would be done and ask. Raises CommandError with `refusal` when there is no terminal."""
    answer = _answer_to(f"{what}\n{paint('Go on?', 'bold', err=True)} [y/N] ")
    if answer is None:
        raise CommandError(refusal, ExitCode.REFUSED, why="there is no terminal to ask at", hint=hint)
    return answer.strip().lower() in ("y", "yes")


def _answer_to(question: str) -> str | None:
    """What the user answers at the keyboard; None: there is nobody to ask. Data may come on stdin while somebody sits
    at the terminal all the same."""
    if sys.stdin.isatty():
        say(question, err=True, end="")
        return sys.stdin.readline()
    if not sys.stderr.isatty():
        return None
    try:
        with Path("/dev/tty").open() as keyboard:
            say(question, err=True, end="")
            return keyboard.readline()
    except OSError:
        return None
