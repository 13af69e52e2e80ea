"""A job on a terminal's line, for questions and notices; the words themselves come from `packhorse/monitor/text.py`."""

from __future__ import annotations

import os
from pathlib import Path

from packhorse.cli.output import escape
from packhorse.core.clock import MINUTE, SECOND
from packhorse.core.job import Job
from packhorse.monitor.text import call_text, shorten, span_text, state_text


def place_text(place: str | None) -> str:
    """Where a failure happened, told from here if it is below."""
    return (place or "").removeprefix(f"{Path.cwd()}{os.sep}")


def ran_text(ran: int) -> str:
    """How long an attempt ran."""
    return f"{ran / SECOND:.2f} s" if SECOND <= ran < MINUTE else span_text(ran)


def one_line(job: Job, shown_id: str) -> str:
    """The job in a sentence's length, for questions and notices."""
    return f"{shown_id}  {state_text(job):<9}  {shorten(escape(call_text(job)), 80)}"
