"""The log writer: writes down what jobs say, and that they run. The loop calls it between its other errands.

What cannot be written because the storage is away stays with the held jobs, for the next time. What it refuses is
written
in smaller portions, and in the end as a notice: no word of a job ends its worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from msgspec.structs import replace

from packhorse.core.errors import BadValue, StorageUnavailable
from packhorse.core.outcome import Verdict
from packhorse.storage.contract import Storage
from packhorse.storage.records import CheckIn, CheckInAnswer, LogLine
from packhorse.worker.held_job import HeldJob
from packhorse.worker.job_log import to_write
from packhorse.worker.portions import refusal, write_in_portions

Said: TypeAlias = tuple[HeldJob, CheckIn]


class JobLogWriter:
    """Writes for one worker. `keep_lines` is how long the log of a job may grow."""

    def __init__(self, storage: Storage, keep_lines: int = 1_000) -> None:
        self._storage = storage
        self._keep_lines = keep_lines

    def mark(self, held_jobs: Sequence[HeldJob]) -> list[HeldJob]:
        """Say in the storage that these run. Answers those that belong to somebody else by now."""
        if not held_jobs:
            return []
        verdicts = self._storage.start([held.job.token for held in held_jobs], [held.ran for held in held_jobs])
        for held in held_jobs:
            held.is_marked = True
        return [held for held, verdict in zip(held_jobs, verdicts, strict=True) if verdict is Verdict.STALE]

    def write_down(self, held_jobs: Sequence[HeldJob]) -> list[HeldJob]:
        """What these have said since the last time. Answers those that an operator wants to end."""
        held_jobs = [held for held in held_jobs if held.has_unwritten]
        for held in held_jobs:
            self._write_log(held)
        return self._write_checkins(held_jobs)

    def _write_checkins(self, held_jobs: Sequence[HeldJob]) -> list[HeldJob]:
        taken = [(held, held.job_log.take_checkin(held.job.token)) for held in held_jobs]
        said = [(held, checkin) for held, checkin in taken if checkin is not None and _is_news(held, checkin)]
        if not said:
            return []
        stopped: list[HeldJob] = []

        def write(part: list[Said]) -> None:
            answers = self._storage.check_in([checkin for _, checkin in part])
            stopped.extend(held for (held, _), told in zip(part, answers, strict=True) if told is CheckInAnswer.STOP)

        try:
            write_in_portions(said, write, _put_checkins_back, _notice_of_checkin, _length_of_checkin)
        except StorageUnavailable:
            if not stopped:  # else the next call tells that it is away: who should end must hear it now
                raise
        return stopped

    def _write_log(self, held: HeldJob) -> None:
        lines = held.job_log.take_lines()
        if not lines:
            return

        def write(part: list[LogLine]) -> None:
            self._storage.append_log(held.job.token, to_write(part, held.job.attempt), keep=self._keep_lines)

        write_in_portions(lines, write, held.job_log.put_lines_back, _notice_of_line, _length_of_line)


def _is_news(held: HeldJob, checkin: CheckIn) -> bool:
    """Nobody need know of a job that has ended that it lived a moment ago."""
    return not held.is_settled or checkin.message is not None or checkin.progress is not None


def _put_checkins_back(said: list[Said]) -> None:
    for held, checkin in said:
        held.job_log.put_checkin_back(checkin)


def _notice_of_line(line: LogLine, error: BadValue) -> LogLine:
    return replace(line, message=refusal("line", line.message, error))


def _length_of_line(line: LogLine) -> int:
    return len(line.message)


def _length_of_checkin(said: Said) -> int:
    _, checkin = said
    return len(checkin.message or "") + len(checkin.progress_text or "")


def _notice_of_checkin(said: Said, error: BadValue) -> Said:
    """Its percentage stays."""
    held, checkin = said
    message, text = checkin.message, checkin.progress_text
    return held, replace(
        checkin,
        message=None if message is None else refusal("message", message, error),
        progress_text=None if text is None else refusal("text", text, error),
    )
