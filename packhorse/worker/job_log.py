"""The job log writer: stores what running jobs log and report, and which jobs run.

The loop calls it between its other work. While the storage is away, everything stays in the held jobs. What the storage
refuses as too large is halved until it fits; what it refuses even alone is replaced by a notice. So nothing that a job
logs can stop its worker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import chain
from typing import TypeAlias, TypeVar

from msgspec.structs import replace

from packhorse.core.errors import BadValue, StorageUnavailable
from packhorse.core.outcome import Verdict
from packhorse.storage.contract import Storage
from packhorse.storage.records import CheckIn, CheckInAnswer, LogLine
from packhorse.worker.held_job import HeldJob, monotonic_now

log = logging.getLogger("packhorse.worker")

MAX_REASON = 500
"""Characters of an error that a notice repeats, so that the notice itself is not too large."""
MAX_REFUSALS = 8
"""After so many refusals of single texts, others of that length are replaced unseen: each try holds up the worker."""

_Report: TypeAlias = tuple[HeldJob, CheckIn]
T = TypeVar("T")


class JobLogWriter:
    """Writes for one worker. `keep_lines` limits the stored log of each job."""

    def __init__(self, storage: Storage, keep_lines: int = 1_000) -> None:
        self._storage = storage
        self._keep_lines = keep_lines

    def mark_running(self, held_jobs: Sequence[HeldJob]) -> list[HeldJob]:
        """Store that these jobs run. Return those that belong to another worker by now."""
        if not held_jobs:
            return []
        verdicts = self._storage.start([held.job.token for held in held_jobs], [held.ran for held in held_jobs])
        for held in held_jobs:
            held.is_marked = True
        return [held for held, verdict in zip(held_jobs, verdicts, strict=True) if verdict is Verdict.STALE]

    def write(self, held_jobs: Sequence[HeldJob]) -> list[HeldJob]:
        """Store what these jobs have logged and reported. Return those that an operator wants to stop."""
        held_jobs = [held for held in held_jobs if held.has_unwritten]
        for held in held_jobs:
            self._write_lines(held)
        return self._write_checkins(held_jobs)

    def _write_lines(self, held: HeldJob) -> None:
        lines = held.buffer.take_lines()
        if not lines:
            return

        def write(part: list[LogLine]) -> None:
            self._storage.append_log(held.job.token, _for_storage(part, held.job.attempt), keep=self._keep_lines)

        _write_in_parts(lines, write, held.buffer.put_lines_back, _notice_for_line, lambda line: len(line.message))

    def _write_checkins(self, held_jobs: Sequence[HeldJob]) -> list[HeldJob]:
        taken = [(held, held.buffer.take_checkin(held.job.token)) for held in held_jobs]
        reports = [(held, checkin) for held, checkin in taken if checkin is not None and _is_news(held, checkin)]
        if not reports:
            return []
        to_stop: list[HeldJob] = []

        def write(part: list[_Report]) -> None:
            answers = self._storage.check_in([checkin for _, checkin in part])
            to_stop.extend(
                held for (held, _), answer in zip(part, answers, strict=True) if answer is CheckInAnswer.STOP
            )

        try:
            _write_in_parts(reports, write, _put_checkins_back, _notice_for_report, _length_of_report)
        except StorageUnavailable:
            if not to_stop:  # else stop them first: the next call reports that the storage is away
                raise
        return to_stop


def _for_storage(lines: list[LogLine], attempt: int) -> list[LogLine]:
    """The lines with their attempt, and with their age in place of the time."""
    now = monotonic_now()
    return [replace(line, at=0, id=0, attempt=attempt, ago=max(0, now - line.at)) for line in lines]


def _is_news(held: HeldJob, checkin: CheckIn) -> bool:
    """A bare sign of life of a job that has ended is no news."""
    return not held.is_settled or checkin.message is not None or checkin.progress is not None


def _put_checkins_back(reports: list[_Report]) -> None:
    for held, checkin in reports:
        held.buffer.put_checkin_back(checkin)


def _notice_for_line(line: LogLine, error: BadValue) -> LogLine:
    return replace(line, message=_notice("line", line.message, error))


def _notice_for_report(report: _Report, error: BadValue) -> _Report:
    """The percentage stays."""
    held, checkin = report
    message, text = checkin.message, checkin.progress_text
    return held, replace(
        checkin,
        message=None if message is None else _notice("message", message, error),
        progress_text=None if text is None else _notice("text", text, error),
    )


def _length_of_report(report: _Report) -> int:
    _, checkin = report
    return len(checkin.message or "") + len(checkin.progress_text or "")


def _notice(noun: str, text: str, error: BadValue) -> str:
    """What replaces a text that the storage refuses."""
    return f"a {noun} of {len(text):,} characters was refused: {str(error)[:MAX_REASON]}"


def _write_in_parts(
    items: list[T],
    write: Callable[[list[T]], object],
    put_back: Callable[[list[T]], object],
    notice_for: Callable[[T, BadValue], T],
    length_of: Callable[[T], int],
) -> None:
    """Write all items in order, in smaller parts where the storage refuses them together. If the storage goes away,
    put back what is not written yet."""
    left = [items]  # a stack of parts: the next one is last
    notice: T | None = None
    refused_lengths: list[int] = []
    lost = 0
    why: BadValue | None = None
    while left:
        part = left.pop()
        try:
            write(part)
        except StorageUnavailable:
            put_back([*part, *_in_order(left)])
            raise
        except BadValue as error:
            middle = len(part) // 2
            if middle:
                left += part[middle:], part[:middle]
            elif part[0] is notice:
                lost, why = lost + 1, error
                if lost == MAX_REFUSALS:  # the storage takes nothing at all
                    lost += len(_in_order(left))
                    left = []
            else:
                refused_lengths.append(length_of(part[0]))
                notice = notice_for(part[0], error)
                if left and len(refused_lengths) == MAX_REFUSALS:
                    limit = min(refused_lengths)
                    left = [[notice_for(one, error) if length_of(one) >= limit else one for one in _in_order(left)]]
                left.append([notice])
    if lost:
        log.warning("dropped %d log messages of jobs: the storage refuses even a notice: %s", lost, why)


def _in_order(left: list[list[T]]) -> list[T]:
    return list(chain.from_iterable(reversed(left)))
