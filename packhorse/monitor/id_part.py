"""Finding jobs by a part of their id: the beginning or the end that a list showed.

The command line and the find box of the web pages use it. Ids that end so may lie anywhere, so they are looked through,
the newest first, for as long as the caller has patience.
"""

from __future__ import annotations

import time

from packhorse.core.job import Job
from packhorse.storage import Storage

SHORTEST = 4
SURE = 8
"""Letters of an id that hardly two jobs share."""
WHOLE = 36
_PAGE = 200


def jobs_with_part(storage: Storage, part: str, patience: float, enough: int = _PAGE) -> tuple[list[Job], bool]:
    """The jobs whose id begins or ends so, and whether all ids were looked at within so many seconds. It ends early
    once it has found enough."""
    found: dict[str, Job] = {}
    deadline = time.monotonic() + patience
    cursor = None
    while True:
        page = storage.find_by_id(part, cursor=cursor, limit=min(_PAGE, enough + 1))
        found.update((job.id, job) for job in page.jobs)
        cursor = page.next
        if cursor is None:
            return list(found.values()), True
        if time.monotonic() > deadline or len(found) >= enough:
            return list(found.values()), False
