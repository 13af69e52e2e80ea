"""Words: what a running job has said and nobody has written down yet.

The job says something in its own threads while the loop takes what it said in another. Log lines, progress and messages
stay in the order in which they were said; the last progress and the last message are what the job shows, too.
"""

from __future__ import annotations

import threading
import time
from collections import deque

from msgspec.structs import replace

from packhorse.core.clock import SECOND
from packhorse.core.job import Token
from packhorse.core.transitions import said
from packhorse.storage.records import CheckIn, LogKind, LogLine, dropped_lines, lost_with

BARE_EVERY = 2.0
"""Seconds between two check-ins without a word that are written down. Nobody waits for them: what they prove, the
worker itself knows at once."""
LINES_AT_ONCE = 1_000
"""How many lines a job may say between two visits of the loop; of more, the newest stay, and a line says how many are
gone."""


class JobLog:
    """The words of one job. The time of its lines is when they were said, by the clock that only rises."""

    __slots__ = ("_bare_after", "_has_checked_in", "_last", "_lines", "_lock", "_lost", "_messages", "_progress")

    def __init__(self) -> None:
        self._messages: deque[str] = deque(maxlen=1)
        self._progress: deque[tuple[int, str | None]] = deque(maxlen=1)
        self._has_checked_in = False  # without a word,
        self._bare_after = float("-inf")  # which is written down after then
        self._lock = threading.Lock()
        self._lines: deque[LogLine] = deque()
        self._lost = 0  # lines that there was no room for
        self._last: dict[str, str] = {}  # what was said last of each kind of check-in

    def __bool__(self) -> bool:
        return bool(self._messages or self._progress or self._lines or self._is_bare_due())

    def _is_bare_due(self) -> bool:
        return self._has_checked_in and time.monotonic() >= self._bare_after

    def log(self, message: str, kind: str) -> None:
        line = LogLine(message, LogKind(kind), at=_clock())
        with self._lock:
            self._lines.append(line)
            self._make_room()

    def check_in(self, message: str | None, progress: int | None, progress_text: str | None) -> None:
        if message is not None:
            self._messages.append(message)
        if progress is not None:
            self._progress.append((progress, progress_text))
        if message is None and progress is None:
            self._has_checked_in = True
        for kind, text in said(message, progress, progress_text):
            if self._last.get(kind) != text:  # a loop may say the same a thousand times
                self._last[kind] = text
                self.log(text, kind)

    def take_lines(self) -> list[LogLine]:
        with self._lock:
            lines, lost = list(self._lines), self._lost
            self._lines.clear()
            self._lost = 0
        return [LogLine(dropped_lines(lost), at=lines[0].at), *lines] if lost else lines

    def put_lines_back(self, lines: list[LogLine]) -> None:
        """They could not be written down; they stay the oldest, and go first when there are too many."""
        with self._lock:
            self._lines.extendleft(reversed(lines))
            self._make_room()

    def _make_room(self) -> None:
        while len(self._lines) > LINES_AT_ONCE:
            self._lost += lost_with([self._lines.popleft().message])

    def take_checkin(self, token: Token) -> CheckIn | None:
        """The last message and the last progress; both are among the lines, too. Both are None if the job has only
        said that it lives."""
        is_bare_due = self._is_bare_due()
        message = self._messages.popleft() if self._messages else None
        percent, text = self._progress.popleft() if self._progress else (None, None)
        if message is None and percent is None and not is_bare_due:
            return None
        self._has_checked_in, self._bare_after = False, time.monotonic() + BARE_EVERY
        return CheckIn(token, message, percent, text, is_logged=True)

    def put_checkin_back(self, said: CheckIn) -> None:
        """It could not be written down; what the job has said since is newer."""
        if said.message is not None and not self._messages:
            self._messages.append(said.message)
        if said.progress is not None and not self._progress:
            self._progress.append((said.progress, said.progress_text))
        if said.message is None and said.progress is None:
            self._has_checked_in, self._bare_after = True, float("-inf")


def to_write(lines: list[LogLine], attempt: int) -> list[LogLine]:
    """These lines as a storage takes them: with their attempt, and how long ago each was said."""
    now = _clock()
    return [replace(line, at=0, id=0, attempt=attempt, ago=max(0, now - line.at)) for line in lines]


def _clock() -> int:
    return round(time.monotonic() * SECOND)
