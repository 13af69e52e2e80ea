"""Words: what a running job has said and nobody has written down yet.

The job says something in its own thread while the desk takes what it said in another. Appending to a deque and popping
from it are single atomic steps, so neither needs a lock, and no last word is lost.
"""

from __future__ import annotations

from collections import deque

from packhorse.job import Token
from packhorse.storage.records import CheckIn, LogKind, LogLine

LINES_AT_ONCE = 1_000
"""How many log lines a job may write between two visits of the desk; of more, the newest stay."""


class Words:
    """The words of one job."""

    __slots__ = ("_lines", "_messages", "_progress")

    def __init__(self) -> None:
        self._messages: deque[str] = deque(maxlen=1)
        self._progress: deque[tuple[int, str | None]] = deque(maxlen=1)
        self._lines: deque[LogLine] = deque(maxlen=LINES_AT_ONCE)

    def __bool__(self) -> bool:
        return bool(self._messages or self._progress or self._lines)

    def log(self, message: str, kind: str) -> None:
        self._lines.append(LogLine(message, LogKind(kind)))

    def check_in(self, message: str | None, progress: int | None, progress_text: str | None) -> None:
        if message is not None:
            self._messages.append(message)
        if progress is not None:
            self._progress.append((progress, progress_text))

    def take_lines(self) -> list[LogLine]:
        lines: list[LogLine] = []
        while self._lines:
            lines.append(self._lines.popleft())
        return lines

    def put_lines_back(self, lines: list[LogLine]) -> None:
        """They could not be written down; they stay the oldest, and go first when there are too many."""
        room = LINES_AT_ONCE - len(self._lines)
        self._lines.extendleft(reversed(lines[max(0, len(lines) - room) :]))

    def take_checkin(self, token: Token) -> CheckIn | None:
        """The last message and the last progress."""
        message = self._messages.popleft() if self._messages else None
        percent, text = self._progress.popleft() if self._progress else (None, None)
        if message is None and percent is None:
            return None
        return CheckIn(token, message, percent, text)

    def put_checkin_back(self, said: CheckIn) -> None:
        """It could not be written down; what the job has said since is newer."""
        if said.message is not None and not self._messages:
            self._messages.append(said.message)
        if said.progress is not None and not self._progress:
            self._progress.append((said.progress, said.progress_text))
