"""A rolling restart: every worker gives way to a fresh one, one after the other, each only when its substitute is
online. If the new code does not start, the old workers go on.
"""

from __future__ import annotations

from collections.abc import Callable

from packhorse.foreman.crew import Crew
from packhorse.foreman.member import Member


class Rolling:
    """Where a restart stands. `start` starts a substitute, or answers None when it must wait."""

    def __init__(self, crew: Crew, start: Callable[[], Member | None], drain: Callable[[Member, str], None]) -> None:
        self._crew = crew
        self._start = start
        self._drain = drain
        self._old: list[str] = []
        self._substitute: str | None = None

    @property
    def is_under_way(self) -> bool:
        return bool(self._old)

    def begin(self, only: str | None = None) -> None:
        """Replace all that are there now, or only this one; also those that came in during a restart that is still
        under way."""
        if only is not None:
            self._old = [*(old for old in self._old if old != only), only]
            return
        self._old = [member.id for member in self._crew.active]
        self._substitute = None

    def step(self) -> None:
        """Go as far as is possible now."""
        self._old = [member.id for member in self._crew.active if member.id in self._old]
        if not self._old:
            return
        substitute = self._crew.get(self._substitute or "")
        if substitute is None:
            started = self._start()
            self._substitute = started.id if started else None
        elif substitute.is_online:
            self._substitute = None
            old = self._crew.get(self._old.pop(0))
            if old is not None:
                self._drain(old, "replaced by a fresh worker")
