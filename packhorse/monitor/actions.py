"""How long things are kept, from the settings: for the chore of foremen, the command and the page that prune."""

from __future__ import annotations

from packhorse.core.settings import Settings
from packhorse.storage.records import Retention


def retention(settings: Settings) -> Retention:
    """How long things are kept."""
    return Retention(
        completed=settings.keep_completed,
        dead=settings.keep_dead,
        aborted=settings.keep_aborted,
        events=settings.keep_events,
        clients=settings.client_timeout,
    )
