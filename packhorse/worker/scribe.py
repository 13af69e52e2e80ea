"""The scribe: writes down what jobs say, and that they run. The desk calls it between its other errands.

What cannot be written because the storage is away stays with the seats, for the next time.
"""

from __future__ import annotations

from collections.abc import Sequence

from packhorse.errors import StorageUnavailable
from packhorse.outcome import Verdict
from packhorse.storage.contract import Storage
from packhorse.storage.records import CheckInAnswer
from packhorse.worker.seat import Seat


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
        for seat in seats:  # before the check-ins, which stand in the log too: most jobs say first what they then do
            self._write_log(seat)
        return self._write_checkins(seats)

    def _write_checkins(self, seats: Sequence[Seat]) -> list[Seat]:
        said = [(seat, checkin) for seat in seats if (checkin := seat.words.take_checkin(seat.job.token)) is not None]
        if not said:
            return []
        try:
            answers = self._storage.check_in([checkin for _, checkin in said])
        except StorageUnavailable:
            for seat, checkin in said:
                seat.words.put_checkin_back(checkin)
            raise
        return [seat for (seat, _), answer in zip(said, answers, strict=True) if answer is CheckInAnswer.STOP]

    def _write_log(self, seat: Seat) -> None:
        lines = seat.words.take_lines()
        if not lines:
            return
        try:
            self._storage.append_log(seat.job.token, lines, keep=self._keep_lines)
        except StorageUnavailable:
            seat.words.put_lines_back(lines)
            raise
