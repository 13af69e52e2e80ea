"""Moving into a SQLite file on a disk that is full, and then has room again."""

from __future__ import annotations

from pathlib import Path

import pytest

from packhorse.conformance.builders import new_jobs
from packhorse.conformance.sample_data import fill, read_everything
from packhorse.core.clock import ManualClock
from packhorse.core.errors import StorageFull
from packhorse.storage import open_storage
from packhorse.storage.copy_store import End, copy_storage
from packhorse.storage.sqlite import SQLite


def room_for(storage: SQLite, pages: int) -> None:
    """Let the file have so many pages more, as on a disk that is soon full."""
    storage.tallies()
    assert storage._db._writer is not None
    (present,) = storage._db._writer.execute("PRAGMA page_count").fetchone()
    storage._db._writer.execute(f"PRAGMA max_page_count = {present + pages}")


@pytest.mark.parametrize("pages", [1, 8, 20])
def test_a_full_disk_stops_the_copy_and_it_goes_on_when_there_is_room(pages: int, tmp_path: Path) -> None:
    clock = ManualClock()
    source, target = open_storage("memory://", now=clock), SQLite(tmp_path / "new.db", now=clock)
    fill(source, clock)
    source.enqueue(new_jobs(200, args='{"text":"' + "long " * 1_000 + '"}'))
    before = read_everything(source)
    room_for(target, pages)

    with pytest.raises(StorageFull):
        copy_storage(End(source, "there"), End(target, "here"), patience=0)
    room_for(target, 1_000_000)
    copy_storage(End(source, "there"), End(target, "here"), patience=0)

    assert read_everything(target) == before
    target.close()
