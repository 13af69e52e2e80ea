"""Finding jobs by a part of their id: the beginning or the end that a list showed.

The command line and the find box of the web pages use it. Storages know ids only as a whole, so jobs are looked
through, the newest first, for as long as the caller has patience.
"""

from __future__ import annotations

import time

from packhorse.job import Job
from packhorse.storage import Storage
from packhorse.storage.records import Filter

SHORTEST = 4
WHOLE = 36
_PAGE = 200


def jobs_with_part(storage: Storage, part: str, patience: float) -> tuple[list[Job], bool]:
    """The jobs whose id begins or ends so, and whether all jobs were looked at within so many seconds."""
    found: list[Job] = []
    deadline = time.monotonic() + patience
    cursor = None
    while True:
        page = storage.find(Filter(text=part), cursor=cursor, limit=_PAGE)
        found += [job for job in page.jobs if job.id.lower().startswith(part) or job.id.lower().endswith(part)]
        cursor = page.next
        if cursor is None:
            return found, True
        if time.monotonic() > deadline:
            return found, False
