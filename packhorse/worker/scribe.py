"""The scribe: writes down what jobs say, and that they run. The desk calls it between its other errands.

What cannot be written because the storage is away stays with the seats, for the next time. What it refuses is written
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
from packhorse.worker.portions import refusal, write_in_portions
from packhorse.worker.seat import Seat
from packhorse.worker.words import to_write

Said: TypeAlias = tuple[Seat, CheckIn]


class Scribe:
    """Writes for one worker. `keep_lines` is how long the log of a job may grow."""

    def __init__(self, storage: Storage, keep_lines: int = 1_000) -> None:
        self._storage = storage
        self._keep_lines = keep_lines

    def mark(self, seats: Sequence[Seat]) -> list[Seat]:
        """Say in the storage that these run. Answers those that belong to somebody else by now."""
        if not seats:
            return []
        verdicts = self._storage.start([seat.job.token for seat in seats], [seat.ran for seat in seats])
        for seat in seats:
            seat.is_marked = True
        return [seat for seat, verdict in zip(seats, verdicts, strict=True) if verdict is Verdict.STALE]

    def write_down(self, seats: Sequence[Seat]) -> list[Seat]:
        """What these have said since the last time. Answers those that an operator wants to end."""
        seats = [seat for seat in seats if seat.has_words]
        for seat in seats:
            self._write_log(seat)
        return self._write_checkins(seats)

    def _write_checkins(self, seats: Sequence[Seat]) -> list[Seat]:
        taken = [(seat, seat.words.take_checkin(seat.job.token)) for seat in seats]
        said = [(seat, checkin) for seat, checkin in taken if checkin is not None and _is_news(seat, checkin)]
        if not said:
            return []
        stopped: list[Seat] = []

        def write(part: list[Said]) -> None:
            answers = self._storage.check_in([checkin for _, checkin in part])
            stopped.extend(seat for (seat, _), told in zip(part, answers, strict=True) if told is CheckInAnswer.STOP)

        try:
            write_in_portions(said, write, _put_checkins_back, _notice_of_checkin, _length_of_checkin)
        except StorageUnavailable:
            if not stopped:  # else the next call tells that it is away: who should end must hear it now
                raise
        return stopped

    def _write_log(self, seat: Seat) -> None:
        lines = seat.words.take_lines()
        if not lines:
            return

        def write(part: list[LogLine]) -> None:
            self._storage.append_log(seat.job.token, to_write(part, seat.job.attempt), keep=self._keep_lines)

        write_in_portions(lines, write, seat.words.put_lines_back, _notice_of_line, _length_of_line)


def _is_news(seat: Seat, checkin: CheckIn) -> bool:
    """Nobody need know of a job that has ended that it lived a moment ago."""
    return not seat.is_settled or checkin.message is not None or checkin.progress is not None


def _put_checkins_back(said: list[Said]) -> None:
    for seat, checkin in said:
        seat.words.put_checkin_back(checkin)


def _notice_of_line(line: LogLine, error: BadValue) -> LogLine:
    return replace(line, message=refusal("line", line.message, error))


def _length_of_line(line: LogLine) -> int:
    return len(line.message)


def _length_of_checkin(said: Said) -> int:
    _, checkin = said
    return len(checkin.message or "") + len(checkin.progress_text or "")


def _notice_of_checkin(said: Said, error: BadValue) -> Said:
    """Its percentage stays."""
    seat, checkin = said
    message, text = checkin.message, checkin.progress_text
    return seat, replace(
        checkin,
        message=None if message is None else refusal("message", message, error),
        progress_text=None if text is None else refusal("text", text, error),
    )
